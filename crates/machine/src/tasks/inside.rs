//! The tasks of a guest of a hypervisor, such as KVM, that runs on the machine.
//!
//! Probes on the guest's kernel report its tasks as those on the machine's kernel do. A thread of the hypervisor runs each processor of the guest, so
//! that what the guest's processor runs belongs to that thread: the thread takes it along when it loses its processor, and to another processor. The
//! tasks of a guest are therefore known only where those of its hypervisor are.

use super::guests::Found;
use super::kernel::Says;
use super::{SoftInterrupt, Tasks, is_daemon, task_is};
use cpu::charged::Nesting;
use cpu::probe::Hit;
use cpu::{BlockCache, Cpu};
use ledger::{TaskId, TaskKind};
use serde::{Deserialize, Serialize};

/// What a processor of a guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// Address of the current task's `task_struct` in the guest, if it is known.
    current: Option<u64>,
    task: TaskId,
    soft_interrupt: Option<SoftInterrupt>,
}

impl Inside {
    /// Returns the value for the processor.
    pub fn charged(&self) -> cpu::charged::Inside {
        cpu::charged::Inside { task: self.task, soft_interrupt: self.soft_interrupt.is_some() }
    }

    /// Returns the task.
    pub fn task(&self) -> TaskId {
        self.task
    }
}

impl Tasks {
    /// Looks for the kernel of the guest that a processor runs, and observes its tasks from then on.
    pub(super) fn look_inside(&mut self, guest: u64, cpu: &mut Cpu, cache: &mut BlockCache) {
        let found = self.guests.look(guest, cpu);
        if found == Found::Nothing || self.kernel.is_none() {
            return;
        }
        for address in self.guests.addresses(cpu) {
            cache.code.add_probe(address, &cpu.wiring.ram);
        }
        // A kernel that is found at once has made no task yet, and its idle task has no number in its name.
        let processor = &mut self.processors[cpu.wiring.index];
        if found == Found::AtOnce && processor.inside.current.is_none() {
            processor.inside.current = self.guests.first_task(cpu);
            self.identify_inside(cpu, Some(*b"swapper/0\0\0\0\0\0\0\0"));
        }
    }

    /// Handles a probe that a processor has reached in a guest.
    pub(super) fn reached_inside(&mut self, hit: Hit, cpu: &mut Cpu, cache: &mut BlockCache) {
        let says = self.guests.observed(cpu).and_then(|observed| observed.says(hit.address));
        let current = self.processors[cpu.wiring.index].inside.current;
        match says {
            Some(Says::Switch) => self.switch_inside(cpu, hit),
            Some(Says::NewTask) => {
                self.guests.observed_mut(cpu).into_iter().for_each(|kernel| kernel.made(cpu, hit.first))
            }
            Some(Says::Name) if current == Some(hit.first) => {
                let name = super::Kernel::name(cpu, hit.second);
                self.identify_inside(cpu, name);
            }
            Some(Says::Name) => {}
            Some(Says::SoftInterrupts) => self.soft_interrupts_inside(cpu, hit, cache),
            None => self.came_back_inside(cpu, hit),
        }
    }

    fn switch_inside(&mut self, cpu: &mut Cpu, hit: Hit) {
        let inside = &mut self.processors[cpu.wiring.index].inside;
        if inside.current.is_none()
            && let Some(kernel) = self.guests.observed_mut(cpu)
        {
            kernel.first_switch(cpu, hit.first);
        }
        *inside = Inside { current: Some(hit.second), task: inside.task, soft_interrupt: None };
        // For the next task the interrupts of the previous one are over.
        cpu.micro.charged.nesting = Nesting::default();
        self.identify_inside(cpu, None);
    }

    /// Identifies the current task of the guest, and publishes it.
    fn identify_inside(&mut self, cpu: &mut Cpu, named: Option<[u8; 16]>) {
        let inside = &mut self.processors[cpu.wiring.index].inside;
        if let (Some(current), Some(kernel)) = (inside.current, self.guests.observed(cpu)) {
            inside.task = match kernel.who_inside(cpu, current, named) {
                Some(task) => cpu.wiring.recorder.task(task),
                None => TaskId(0),
            };
        }
        self.publish(cpu);
    }

    /// Handles the begin of soft interrupt processing in a guest, as [`Tasks::soft_interrupts`] does in the machine.
    fn soft_interrupts_inside(&mut self, cpu: &mut Cpu, hit: Hit, cache: &mut BlockCache) {
        let task = self.processors[cpu.wiring.index].inside.task;
        if task_is(cpu, task, |task| task.kind == TaskKind::KernelThread && is_daemon(task)) {
            return;
        }
        let Some((back, stack)) = self.soft_interrupts_return(cpu, hit, cache) else { return };
        let inside = &mut self.processors[cpu.wiring.index].inside;
        if inside.soft_interrupt.is_none_or(|soft| stack > soft.stack) {
            let nesting = std::mem::take(&mut cpu.micro.charged.nesting);
            inside.soft_interrupt = Some(SoftInterrupt { back, stack, nesting });
            self.publish(cpu);
        }
    }

    fn came_back_inside(&mut self, cpu: &mut Cpu, hit: Hit) {
        let inside = &mut self.processors[cpu.wiring.index].inside;
        let Some(soft) = inside.soft_interrupt.filter(|soft| (soft.back, soft.stack) == (hit.address, hit.stack))
        else {
            return;
        };
        inside.soft_interrupt = None;
        cpu.micro.charged.nesting = soft.nesting;
        self.publish(cpu);
    }
}
