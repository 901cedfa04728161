//! The table of system calls as filters for seccomp(2).

use crate::calls::{Call, Check, TABLE, TRIED};
use crate::needs::Needs;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use syscalls::Sysno;

/// Rules by the number of the call. A call with an empty list is always permitted.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn condition(check: &Check) -> Result<SeccompCondition, BackendError> {
    let (short, long) = (SeccompCmpArgLen::Dword, SeccompCmpArgLen::Qword);
    match *check {
        Check::Is(argument, value) => SeccompCondition::new(argument, short, SeccompCmpOp::Eq, value.into()),
        Check::Bits(argument, mask, value) => {
            SeccompCondition::new(argument, short, SeccompCmpOp::MaskedEq(mask.into()), value.into())
        }
        Check::Null(argument) => SeccompCondition::new(argument, long, SeccompCmpOp::Eq, 0),
        Check::Own(argument) => SeccompCondition::new(argument, short, SeccompCmpOp::Eq, std::process::id().into()),
    }
}

fn number(call: Sysno) -> i64 {
    i64::from(call.id())
}

fn rules(calls: impl Iterator<Item = &'static Call>) -> Result<Rules, BackendError> {
    let mut rules = Rules::new();
    for row in calls {
        let known = rules.get(&number(row.call)).map(Vec::is_empty);
        if row.checks.is_empty() {
            rules.insert(number(row.call), Vec::new());
        } else if known != Some(true) {
            let conditions = row.checks.iter().map(condition).collect::<Result<_, _>>()?;
            rules.entry(number(row.call)).or_default().push(SeccompRule::new(conditions)?);
        }
    }
    Ok(rules)
}

fn program(rules: Rules, otherwise: SeccompAction, action: SeccompAction) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(rules, otherwise, action, TargetArch::x86_64)?.try_into()
}

/// Returns the rows of the table that apply to a process with these needs.
pub fn needed(needs: &Needs) -> impl Iterator<Item = &'static Call> {
    TABLE.iter().filter(|row| needs.has(row.needed))
}

/// Returns the filters that permit these calls. A call must pass all filters.
pub fn programs(calls: impl Iterator<Item = &'static Call>) -> Result<Vec<BpfProgram>, BackendError> {
    let mut allowed = rules(calls)?;
    let mut tried: BTreeMap<u16, Rules> = BTreeMap::new();
    for (error, call) in TRIED.iter().filter(|(_, call)| !rules_have(&allowed, *call)) {
        tried.entry(*error).or_default().insert(number(*call), Vec::new());
    }
    // With several filters the strictest action applies, and an error is less strict than a signal.
    allowed.extend(tried.values().flatten().map(|(call, _)| (*call, Vec::new())));
    let mut programs = Vec::new();
    for (error, rules) in tried {
        programs.push(program(rules, SeccompAction::Allow, SeccompAction::Errno(error.into()))?);
    }
    programs.push(program(allowed, SeccompAction::Trap, SeccompAction::Allow)?);
    Ok(programs)
}

fn rules_have(rules: &Rules, call: Sysno) -> bool {
    rules.contains_key(&number(call))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Use;
    use crate::calls::KEEPER;

    fn rules(needs: &Needs) -> Result<Rules, BackendError> {
        super::rules(needed(needs))
    }

    #[test]
    fn a_row_without_checks_outweighs_those_with() {
        let of = |needs: &Needs| rules(needs).unwrap()[&number(Sysno::ioctl)].len();
        let plain = of(&Needs::default());
        assert!(plain > 0);
        assert_eq!(of(&Needs { uses: vec![Use::Kvm], ..Needs::default() }), plain + 1);
        let open = |needs: &Needs| rules(needs).unwrap().get(&number(Sysno::openat)).map(Vec::len);
        assert_eq!(open(&Needs::default()), None);
        assert_eq!(open(&Needs { readable: vec!["/".into()], ..Needs::default() }), Some(1));
        assert_eq!(open(&Needs { writable: vec!["/".into()], ..Needs::default() }), Some(0));
    }

    #[test]
    fn nothing_starts_programs_or_reaches_other_processes() {
        let uses = vec![Use::Debugger, Use::Joins, Use::Kvm, Use::NewMachines];
        let needs = Needs { readable: vec!["/".into()], writable: vec!["/".into()], uses };
        let rules = rules(&needs).unwrap();
        use Sysno::*;
        for call in [
            execve,
            execveat,
            fork,
            vfork,
            clone3,
            ptrace,
            process_vm_readv,
            process_vm_writev,
            kill,
            tkill,
            socket,
            connect,
            bind,
            listen,
            sendmsg,
            sendmmsg,
            io_uring_setup,
            bpf,
            mount,
            unshare,
            setns,
            perf_event_open,
            userfaultfd,
            prlimit64,
            seccomp,
            personality,
            pkey_mprotect,
            shmat,
            open_by_handle_at,
            pidfd_open,
        ] {
            assert!(!rules_have(&rules, call), "{call}");
        }
        let keeper = super::rules(KEEPER.iter()).unwrap();
        for call in keeper.keys().filter_map(|number| Sysno::new(*number as usize)) {
            assert!(rules_have(&rules, call), "{call}: a keeper needs no more than a machine with all needs");
        }
    }
}
