//! Programs of a usual installation with inputs of our own.

use silicon::random::Random;
use std::fmt::Write;
use std::io::Error;
use std::path::Path;

/// The environment of the programs, on both machines. The hashes of python3 and perl are not random: with other seeds python3 executes
/// up to a third more instructions for the same program, because names of variables collide.
pub const ENVIRONMENT: [(&str, &str); 3] = [("LC_ALL", "C"), ("PYTHONHASHSEED", "0"), ("PERL_HASH_SEED", "0")];

/// A program and its arguments.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name.
    pub name: String,
    /// The program by its path, and its arguments.
    pub command: Vec<String>,
    /// True if the program needs more files than its libraries.
    pub whole: bool,
}

/// Returns text of random words, the frequent ones short.
fn text(bytes: usize) -> String {
    let mut random = Random::new(5);
    let word = |random: &mut Random, letters: u64| -> String {
        (0..letters).map(|_| (b'a' + (random.below(26) * random.below(26) / 25) as u8 % 26) as char).collect()
    };
    let words: Vec<String> = (0..4000u64).map(|n| word(&mut random, 2 + n / 500)).collect();
    let mut text = String::new();
    while text.len() < bytes {
        for _ in 0..4 + random.below(12) {
            let place = random.below(4000) * random.below(4000) / 4000;
            text.push_str(&words[place as usize]);
            text.push(' ');
        }
        text.push('\n');
    }
    text
}

/// Returns lines of three numbers.
fn numbers(lines: usize) -> String {
    let mut random = Random::new(6);
    (0..lines).fold(String::new(), |mut text, _| {
        let _ = writeln!(text, "{} {} {}", random.below(1_000_000_000), random.below(1000), random.below(100));
        text
    })
}

/// Writes the inputs to a directory, and returns the programs that this machine has.
pub fn workloads(directory: &Path, quick: bool) -> Result<Vec<Workload>, Error> {
    let write = |name: &str, contents: &str| {
        let path = directory.join(name);
        std::fs::write(&path, contents)?;
        Ok::<_, Error>(path.display().to_string())
    };
    let scale = if quick { 2 } else { 1 };
    let text = write("text", &text((2 << 20) / scale))?;
    let numbers = write("numbers", &numbers(120_000 / scale))?;
    let sum = "{ s += $1 * $2; n[$3]++ } END { for (k in n) t += n[k]; print s, t }";
    let words = "while (<>) { $n{$_}++ for split } print scalar(keys %n), \"\\n\"";
    let primes = "s = bytearray(b'\\x01') * 400000\nfor i in range(2, 633):\n    if s[i]:\n        for j in range(i * i, 400000, i):\n            s[j] = 0\nprint(sum(s), sorted(str(i) for i in range(40000))[0])";
    let all: [(&str, &str, &[&str]); 10] = [
        ("gzip", "gzip", &["-c", &text]),
        ("sort -n", "sort", &["-n", &numbers]),
        ("awk", "awk", &[sum, &numbers]),
        ("python3", "python3", &["-S", "-c", primes]),
        ("xz", "xz", &["-0", "-T1", "-c", &text]),
        ("bzip2", "bzip2", &["-c", &text]),
        ("sha256sum", "sha256sum", &[&text, &numbers, &text, &numbers, &text, &numbers, &text, &text]),
        ("sort", "sort", &[&text]),
        ("grep", "grep", &["-c", "-E", "a[b-f]+e|(zy|qu).*x", &text]),
        ("perl", "perl", &["-e", words, &text]),
    ];
    let most = if quick { 4 } else { all.len() };
    let installed = |(name, program, arguments): &(&str, &str, &[&str])| {
        let path =
            ["/usr/bin", "/bin"].iter().map(|place| Path::new(place).join(program)).find(|path| path.exists())?;
        let mut command = vec![path.display().to_string()];
        command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let whole = matches!(*program, "python3" | "perl" | "awk");
        Some(Workload { name: (*name).to_owned(), command, whole })
    };
    Ok(all.iter().take(most).filter_map(installed).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_the_same_each_time() {
        assert_eq!(text(10_000), text(10_000));
        assert_eq!(numbers(100), numbers(100));
        assert_eq!(numbers(100).lines().count(), 100);
    }
}
