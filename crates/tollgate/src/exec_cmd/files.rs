//! The files for the command: its program with its dependencies, and a few files that programs commonly expect.

use super::{ExecArgs, opened};
use crate::output::say;
use crate::table::{counted, hexadecimal};
use crate::usage::WrongArguments;
use anyhow::{Context, Result, anyhow, bail};
use guestfs::closure::Closure;
use guestfs::shares::Leaving;
use guestfs::{Kind, Packed, Shares};
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Environment variables that the command inherits, besides those that begin with `LC_`.
const KEPT: [&str; 11] =
    ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "COLORTERM", "LD_LIBRARY_PATH"];
/// The shell that programs run commands with.
const SHELL: &str = "/bin/sh";
/// Shells whose `-c` argument is searched for names of programs.
const SHELLS: [&str; 4] = ["sh", "bash", "dash", "zsh"];
/// Programs that execute a program which their arguments name.
const RUNNERS: [&str; 24] = [
    "chrt",
    "env",
    "flock",
    "gdb",
    "hyperfine",
    "ionice",
    "ltrace",
    "nice",
    "nohup",
    "numactl",
    "perf",
    "prlimit",
    "setarch",
    "setpriv",
    "setsid",
    "stdbuf",
    "strace",
    "taskset",
    "time",
    "timeout",
    "unshare",
    "valgrind",
    "watch",
    "xargs",
];
/// Options of find that have a command behind them.
const EXECUTING: [&str; 4] = ["-exec", "-execdir", "-ok", "-okdir"];
/// Directories that programs expect, and their permissions.
const DIRECTORIES: [(&str, u32); 10] = [
    ("/dev", 0o755),
    ("/proc", 0o555),
    ("/sys", 0o555),
    ("/etc", 0o755),
    ("/root", 0o700),
    ("/run", 0o755),
    ("/var/tmp", 0o1777),
    ("/var/log", 0o755),
    ("/usr/bin", 0o755),
    ("/tmp", 0o1777),
];
/// Files that are packed if the host has them: those that the C library reads.
const COMMON: [&str; 3] = ["/etc/ld.so.cache", "/usr/lib/locale/C.utf8", "/etc/localtime"];
/// Files that are packed with a network: name resolution and certificates.
const NETWORK: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/openssl.cnf",
    "/etc/services",
    "/etc/protocols",
    "/usr/lib/x86_64-linux-gnu/libnss_dns.so.2",
];
/// The directory of time zones.
const ZONES: &str = "/usr/share/zoneinfo";
/// Directories with terminal descriptions.
const TERMINALS: [&str; 3] = ["/lib/terminfo", "/usr/share/terminfo", "/etc/terminfo"];

/// Directories in which the guest's kernel has files of its own.
const OF_GUEST: [&str; 3] = ["/dev", "/proc", "/sys"];
/// Number of files that a ledger lists: some 120 bytes each, of 64 KiB for a fact.
const MOST_LISTED: usize = 400;

/// The user who runs the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User, group, and supplementary groups.
    pub ids: Vec<u32>,
}

impl User {
    /// Returns the user that the option names, or else the user of this process.
    pub fn find(option: Option<&str>) -> Result<Self> {
        let Some(text) = option else {
            let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
            let mut ids = vec![uid, gid];
            let others = nix::unistd::getgroups().unwrap_or_default().into_iter().map(nix::unistd::Gid::as_raw);
            ids.extend(others.filter(|other| *other != gid));
            return Ok(Self { ids });
        };
        if text == "root" {
            return Ok(Self { ids: vec![0, 0] });
        }
        let (user, group) = text.split_once(':').unwrap_or((text, text));
        match (user.parse(), group.parse()) {
            // The largest number is no user: system calls take it for "leave as it is".
            (Ok(u32::MAX), _) | (_, Ok(u32::MAX)) => {
                bail!(WrongArguments::new(format!("--user {text}: {} is the number of no user or group", u32::MAX)))
            }
            (Ok(user), Ok(group)) => Ok(Self { ids: vec![user, group] }),
            _ => bail!(WrongArguments::new(format!("--user {text}: root, or numbers as in 1000 or 1000:100"))),
        }
    }

    /// Formats the user for the guest.
    pub fn text(&self) -> String {
        self.ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
    }
}

/// Returns the environment of the command, without the variables of options: inherited variables, and `PWD`.
pub fn environment(directory: &Path) -> Vec<(OsString, OsString)> {
    let kept = |name: &OsStr| KEPT.iter().any(|kept| *kept == name) || name.as_bytes().starts_with(b"LC_");
    let mut all: Vec<_> = std::env::vars_os().filter(|(name, _)| kept(name)).collect();
    all.retain(|(name, _)| name != "PWD");
    all.push(("PWD".into(), directory.into()));
    all
}

/// Parses an argument of `--env`.
pub fn variable(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.to_owned()),
        Some(_) => Err("the variable has no name".to_owned()),
        None => Err(format!("NAME=VALUE is expected; --keep-env {text} passes the variable of this shell")),
    }
}

/// Adds the variables of `--keep-env`, with their values here, and then those of `--env`, `NAME=VALUE`. The result is sorted.
pub fn add_options(all: &mut Vec<(OsString, OsString)>, kept: &[String], set: &[String]) {
    let kept = kept.iter().map(|name| (name.as_str(), std::env::var_os(name)));
    let set = set.iter().filter_map(|option| option.split_once('=')).map(|(name, value)| (name, Some(value.into())));
    for (name, value) in kept.chain(set) {
        all.retain(|(other, _)| other != name);
        all.extend(value.map(|value| (name.into(), value)));
    }
    all.sort();
}

/// Returns true if the options `--keep-env` and `--env` decide a variable.
pub fn sets(kept: &[String], set: &[String], name: &str) -> bool {
    let set = set.iter().filter_map(|option| option.split_once('=')).map(|(name, _)| name);
    kept.iter().map(String::as_str).chain(set).any(|other| other == name)
}

/// The interpreter of the command is missing.
#[derive(Debug)]
pub struct MissingInterpreter {
    /// The program that needs it, if that is not the command itself.
    of: Option<PathBuf>,
    interpreter: PathBuf,
}

impl fmt::Display for MissingInterpreter {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = self.of.as_ref().map_or_else(String::new, |of| format!(", which {} needs", of.display()));
        write!(to, "the interpreter {} is missing{needed}", self.interpreter.display())
    }
}

/// Returns the interpreter without which the command can't be executed, if that is missing on this host: that of a script, or the program interpreter of an
/// ELF file.
pub fn missing_interpreter(
    args: &ExecArgs,
    environment: &[(OsString, OsString)],
    directory: &Path,
) -> Option<MissingInterpreter> {
    /// Interpreters that may be scripts themselves (Linux, `exec_binprm`).
    const DEPTH: usize = 5;
    let variable = |name: &str| environment.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_bytes());
    let closure = Closure::new(variable("PATH").unwrap_or_default(), &[]);
    let mut program = directory.join(closure.find(args.command[0].as_bytes(), directory)?);
    for depth in 0..DEPTH {
        let interpreter = guestfs::closure::interpreter(&program).filter(|path| path.is_absolute())?;
        if !interpreter.exists() {
            return Some(MissingInterpreter { of: (depth > 0).then_some(program), interpreter });
        }
        program = interpreter;
    }
    None
}

/// Packs the files for a command, except those in shared directories.
pub fn pack(
    args: &ExecArgs,
    environment: &[(OsString, OsString)],
    directory: &Path,
    user: &User,
    shares: Arc<Shares>,
) -> Result<Packed> {
    let variable = |name: &str| {
        let found = environment.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_bytes().to_vec()).unwrap_or_default()
    };
    let mut tree = Packed::beside(shares);
    let mut closure = Closure::new(&variable("PATH"), &variable("LD_LIBRARY_PATH"));
    for (path, permissions) in DIRECTORIES {
        tree.add_alone(Path::new(path)).or_else(|_| tree.make_directory(Path::new(path), permissions))?;
        tree.make_directory(Path::new(path), permissions)?;
    }
    let name = args.command[0].as_bytes();
    let program = closure.find(name, directory).ok_or_else(|| NotFound::of(&args.command[0], directory))?;
    let own = |path: &Path| tree_path(path, directory);
    closure.add(&mut tree, &own(&program))?;
    for path in COMMON.iter().chain(&[SHELL]).map(Path::new).filter(|path| path.exists()) {
        closure.add(&mut tree, path)?;
    }
    if !args.net.is_empty() {
        for path in NETWORK.iter().map(Path::new).filter(|path| path.exists()) {
            closure.add(&mut tree, path)?;
        }
        for path in std::fs::read_dir("/etc/ssl/certs").into_iter().flatten().flatten().map(|entry| entry.path()) {
            // A dangling link does not prevent the run.
            let _ = tree.add(&path);
        }
    }
    let terminal = args.terminal().then(|| variable("TERM"));
    if let Some(terminal) = terminal.filter(|name| !name.is_empty() && !name.contains(&b'/')) {
        let terminal = Path::new(OsStr::from_bytes(&terminal)).to_path_buf();
        let letter = terminal.to_string_lossy().chars().next().unwrap_or('x').to_string();
        let described = TERMINALS.map(|root| Path::new(root).join(&letter).join(&terminal));
        for path in described.iter().filter(|path| path.is_file()) {
            tree.add(path)?;
        }
    }
    // The C library reads the zone's file.
    let zone = variable("TZ");
    let zone = Path::new(ZONES).join(OsStr::from_bytes(zone.strip_prefix(b":").unwrap_or(&zone)));
    if zone.is_file() {
        closure.add(&mut tree, &zone)?;
    }
    for path in &args.add {
        let named = if own(path).exists() { None } else { closure.find(path.as_os_str().as_bytes(), directory) };
        let path = named.unwrap_or_else(|| own(path));
        closure.add(&mut tree, &path).with_context(|| format!("--add {}", path.display()))?;
    }
    if args.add_opened {
        let used = opened::of_command(&own(&program), &args.command[1..], environment, directory)?;
        let mut others = 0;
        for path in &used {
            // A directory is what is listed or entered; its contents were named by themselves.
            let added = if path.is_dir() { tree.add_alone(path) } else { closure.add(&mut tree, path) };
            others += usize::from(added.is_err());
        }
        if others > 0 {
            let others = counted(others, "file", "files");
            say(&format!(
                "tollgate: --add-opened: {others} can't be packed, as this user can't read them or they are no files"
            ));
        }
    }
    let words = split(&args.command);
    // Files that the command's arguments name.
    for argument in &words[1..] {
        let path = own(Path::new(argument));
        if path.is_file() && !is_of_guest(&path) {
            closure.add(&mut tree, &path)?;
        }
    }
    for word in programs_of_runners(&words) {
        if let Some(path) = closure.find(word.as_bytes(), directory) {
            closure.add(&mut tree, &own(&path))?;
        }
    }
    for word in words_of_shells(&words) {
        let named = own(Path::new(OsStr::from_bytes(&word)));
        if is_of_guest(&named) {
            continue;
        }
        if let Some(path) = Some(named).filter(|path| path.is_file()).or_else(|| closure.find(&word, directory)) {
            closure.add(&mut tree, &own(&path))?;
        }
    }
    let home = variable("HOME");
    for path in [directory, Path::new(OsStr::from_bytes(&home))] {
        if path.is_absolute() && !tree.has(path) && tree.add_alone(path).is_err() {
            tree.make_directory(path, 0o755)?;
        }
    }
    write_accounts(&mut tree, user, &variable("USER"), &home)?;
    closure.leaving(&tree).for_each(report);
    if let Some(first) = tree.leaving().next() {
        let text = format!("{} is a link out of its directory, to {}", first.from.display(), first.to.display());
        let others = match tree.leaving().count() - 1 {
            0 => String::new(),
            1 => ", like the target of another link".to_owned(),
            others => format!(", like the targets of {others} other links"),
        };
        say(&format!("tollgate: --add: {text}, which is not packed{others}"));
    }
    Ok(tree)
}

/// Returns true for a file that the guest's kernel has itself. The host's, such as /proc/self/maps, would differ from run to run.
pub fn is_of_guest(path: &Path) -> bool {
    OF_GUEST.iter().any(|place| path.starts_with(place))
}

/// Lists the files whose contents come from the host, a line for each: SHA-256, size, path in the guest. A list that a ledger has no room for ends with the
/// number of other files.
pub fn listed(files: &mut Packed) -> Result<String> {
    let mut text = String::new();
    let contents = files.walk().into_iter().filter(|file| file.attributes.kind() == Kind::File);
    let (mut written, mut others) = (0, 0);
    for file in contents.collect::<Vec<_>>() {
        if !files.is_of_host(file.node) {
            continue;
        }
        if written == MOST_LISTED {
            others += 1;
            continue;
        }
        let bytes = files.contents(file.node).map_err(|error| anyhow!("a file can't be read: {error}"))?;
        let hash = hexadecimal(&Sha256::digest(&bytes));
        let path = String::from_utf8_lossy(&file.path).replace('\n', "\u{fffd}");
        text += &format!("{hash} {} /{path}\n", bytes.len());
        written += 1;
    }
    if others > 0 {
        text += &format!("and {}\n", counted(others, "other", "others"));
    }
    Ok(text)
}

/// Tells the user that a file was not packed, because only a shared directory names it.
fn report(Leaving { from, to, link }: &Leaving) {
    let (from, to) = (from.display(), to.display());
    let what = if *link {
        format!("{from} is a link out of a shared directory, to {to}")
    } else {
        format!("{from}, in a shared directory, names {to}")
    };
    say(&format!("tollgate: {what}, which is not packed (--add {to} packs it)"));
}

/// Returns true if a word of a command is the name or the path of one of these programs.
fn is_one_of(word: &OsStr, programs: &[&str]) -> bool {
    Path::new(word).file_name().is_some_and(|name| programs.iter().any(|program| *program == name))
}

/// Returns the text behind `-S` or `--split-string` in a word of env's command line: empty if it is the next word.
fn split_string(word: &[u8]) -> Option<&[u8]> {
    const LONG: &[u8] = b"--split-string";
    if let Some(rest) = word.strip_prefix(LONG) {
        return if rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"=") };
    }
    // Options that take no value may be in front of it in the same word.
    let at = word.strip_prefix(b"-")?.iter().position(|byte| !b"iv0".contains(byte))? + 1;
    (word[at] == b'S').then(|| &word[at + 1..])
}

/// Returns a command in which env has split the text behind its option `-S` into words. Quotation marks are left out.
fn split(command: &[OsString]) -> Vec<OsString> {
    let is_separator = |byte: &u8| byte.is_ascii_whitespace() || b"\"'".contains(byte);
    let words = |text: &[u8]| -> Vec<OsString> {
        let words = text.split(is_separator).filter(|word| !word.is_empty());
        words.map(|word| OsStr::from_bytes(word).to_owned()).collect()
    };
    let mut out: Vec<OsString> = Vec::new();
    let mut given = command.iter();
    while let Some(word) = given.next() {
        let is_of_env = out.iter().any(|word| is_one_of(word, &["env"]));
        match split_string(word.as_bytes()).filter(|_| is_of_env) {
            None => out.push(word.clone()),
            Some(b"") => out.extend(given.next().into_iter().flat_map(|text| words(text.as_bytes()))),
            Some(text) => out.extend(words(text)),
        }
    }
    out
}

/// Returns the commands that find executes, each with all words behind it.
fn executed_by_find(command: &[OsString]) -> impl Iterator<Item = &[OsString]> {
    let finds = is_one_of(&command[0], &["find"]);
    let is_option = |word: &OsString| EXECUTING.iter().any(|option| *option == word);
    let behind = (1..command.len()).filter(move |at| finds && is_option(&command[at - 1]));
    behind.map(|at| &command[at..])
}

/// Returns words that may be names of programs: arguments of a program that executes another one, such as env, and the first words of commands that find
/// executes. A path is none of them, because files that arguments name are packed in any case.
fn programs_of_runners(command: &[OsString]) -> Vec<&OsString> {
    let runs = is_one_of(&command[0], &RUNNERS);
    let is_name =
        |word: &OsStr| !word.is_empty() && !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'/');
    let own = command[1..].iter().filter(|word| runs && is_name(word));
    let of_find = executed_by_find(command).flat_map(|command| {
        let program = Some(&command[0]).filter(|word| is_name(word));
        program.into_iter().chain(programs_of_runners(command))
    });
    own.chain(of_find).collect()
}

/// Returns the words of the `-c` argument of a shell, which may name programs and files: of the command itself, or of one that it executes.
fn words_of_shells(command: &[OsString]) -> Vec<Vec<u8>> {
    let last = if is_one_of(&command[0], &RUNNERS) { command.len() } else { 1 };
    let own = (0..last).flat_map(|at| words_of_shell(&command[at..]));
    own.chain(executed_by_find(command).flat_map(words_of_shells)).collect()
}

/// Returns the words of a shell's `-c` argument.
fn words_of_shell(command: &[OsString]) -> Vec<Vec<u8>> {
    let is_option = |word: &&OsString| word.as_bytes().starts_with(b"-") && word.as_bytes().ends_with(b"c");
    if !is_one_of(&command[0], &SHELLS) || !command[1..].iter().any(|word| is_option(&word)) {
        return Vec::new();
    }
    let texts = command[1..].iter().map(|word| word.as_bytes());
    let separates = |byte: &u8| !byte.is_ascii_alphanumeric() && !b"/._+-[".contains(byte);
    texts.flat_map(|text| text.split(separates)).filter(|word| !word.is_empty()).map(<[u8]>::to_vec).collect()
}

/// The command was not found, or is a directory.
#[derive(Debug)]
pub struct NotFound {
    name: OsString,
    /// True if the name has a slash, so that no PATH is searched for it.
    pub is_path: bool,
    /// True if a directory has that name.
    pub directory: bool,
}

impl NotFound {
    fn of(name: &OsStr, directory: &Path) -> Self {
        let is_path = name.as_bytes().contains(&b'/');
        Self { name: name.to_owned(), is_path, directory: is_path && directory.join(name).is_dir() }
    }
}

impl fmt::Display for NotFound {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match (self.directory, self.is_path) {
            (true, _) => "is a directory",
            (false, true) => "no such file",
            (false, false) => "command not found",
        };
        write!(to, "{}: {why}", self.name.display())
    }
}

impl std::error::Error for NotFound {}

/// Returns the place of a path in the tree.
fn tree_path(path: &Path, directory: &Path) -> PathBuf {
    directory.join(path)
}

/// Adds files with user and group names. Files that the user added stay.
fn write_accounts(tree: &mut Packed, user: &User, name: &[u8], home: &[u8]) -> Result<()> {
    let clean = |text: &[u8], otherwise: &str| {
        let text = String::from_utf8_lossy(text).into_owned();
        let sound = !text.is_empty() && !text.contains([':', '\n']);
        if sound { text } else { otherwise.to_owned() }
    };
    let (mut passwd, mut group) = ("root:x:0:0:root:/root:/bin/sh\n".to_owned(), "root:x:0:\ntty:x:5:\n".to_owned());
    if let [uid, gid, ..] = user.ids[..]
        && uid != 0
    {
        let (name, home) = (clean(name, "user"), clean(home, "/"));
        passwd += &format!("{name}:x:{uid}:{gid}:{name}:{home}:/bin/sh\n");
        group += &format!("{name}:x:{gid}:\n");
    }
    passwd += "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
    group += "nogroup:x:65534:\n";
    let hosts = "127.0.0.1\tlocalhost tollgate\n::1\tlocalhost\n".to_owned();
    let files = [
        ("/etc/passwd", passwd),
        ("/etc/group", group),
        ("/etc/hosts", hosts),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
    ];
    for (path, text) in files {
        if !tree.has(Path::new(path)) {
            tree.put_bytes(Path::new(path), 0o644, text.as_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_numbers_or_root() {
        assert_eq!(User::find(Some("root")).unwrap().text(), "0 0");
        assert_eq!(User::find(Some("1000")).unwrap().text(), "1000 1000");
        assert_eq!(User::find(Some("1000:100")).unwrap().text(), "1000 100");
        for wrong in ["", "x", "1:", ":1", "-1", "1:2:3"] {
            assert!(User::find(Some(wrong)).is_err(), "{wrong}");
        }
        assert!(User::find(None).unwrap().ids.len() >= 2);
    }

    #[test]
    fn a_command_names_the_programs_that_it_executes() {
        let command = |text: &str| text.split('|').map(OsString::from).collect::<Vec<_>>();
        let names = |text: &str| {
            let command = command(text);
            let words = split(&command);
            programs_of_runners(&words).into_iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names("/usr/bin/env|-i|PATH=/bin|A=b|ls|/tmp"), ["A=b", "ls"]);
        assert_eq!(names("perf|stat|-e|cycles|--|sort"), ["stat", "cycles", "sort"]);
        assert!(names("ls|sort").is_empty());
        assert_eq!(names("find|.|-name|x|-exec|wc|-c|{}|;|-ok|/bin/ls|{}|+"), ["wc"]);
        assert_eq!(names("find|.|-execdir|nice|gzip|{}|;"), ["nice", "gzip", "{}", ";"]);
        assert_eq!(names("find|.|-name|-exec"), [""; 0]);
        for command in ["env|-S|A=b  wc -c|x", "env|-iSA=b wc -c|x", "env|--split-string=A=b 'wc' -c|x"] {
            assert_eq!(names(command), ["A=b", "wc", "x"], "{command}");
        }
        // The option of another program is none of env's.
        assert_eq!(names("nice|sort|-S|1M"), ["sort", "1M"]);
        let words = |text: &str| {
            let words = words_of_shells(&command(text)).into_iter();
            words.map(|word| String::from_utf8(word).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(words("bash|-ec|ls | wc -l"), ["-ec", "ls", "wc", "-l"]);
        assert_eq!(words("nice|sh|-c|ls"), ["-c", "ls"]);
        assert_eq!(words("find|.|-exec|sh|-c|wc $1|;"), ["-c", "wc", "1"]);
        assert!(words("echo|sh|-c|ls").is_empty() && words("sh|script").is_empty());
    }

    #[test]
    fn the_environment_is_what_options_say() {
        let mut all = environment(Path::new("/somewhere"));
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let (kept, set) =
            (names(&["CARGO_PKG_NAME", "TOLLGATE_NOT_SET", "PATH"]), names(&["TOLLGATE_TEST=a=b", "PATH=/x"]));
        let has = |all: &[(OsString, OsString)], name: &str| all.iter().any(|(other, _)| other == name);
        assert!(!has(&all, "CARGO_PKG_NAME") && !has(&all, "CARGO_MANIFEST_DIR"));
        add_options(&mut all, &kept, &set);
        let value =
            |name: &str| all.iter().find(|(n, _)| n == name).map(|(_, value)| value.to_str().unwrap().to_owned());
        assert_eq!(value("TOLLGATE_TEST").as_deref(), Some("a=b"));
        assert_eq!(value("PWD").as_deref(), Some("/somewhere"));
        assert_eq!((value("CARGO_PKG_NAME").as_deref(), value("TOLLGATE_NOT_SET")), (Some("tollgate"), None));
        assert_eq!(value("PATH").as_deref(), Some("/x"), "what is set comes after what is kept");
        assert_eq!(value("CARGO_MANIFEST_DIR"), None);
        assert!(sets(&kept, &set, "PATH") && sets(&kept, &set, "TOLLGATE_TEST") && !sets(&kept, &set, "PWD"));
        assert!(variable("A=").is_ok() && variable("=1").is_err());
        assert!(variable("TERM").unwrap_err().contains("--keep-env TERM"));
    }
}
