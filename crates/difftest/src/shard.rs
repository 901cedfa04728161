//! Work spread over processes: each has its own fixed addresses and signal handlers. Workers write one JSON message per
//! line.

use anyhow::{Context, Result, anyhow, bail};
use difftest::forms::Form;
use difftest::runner::{Mismatch, Report, Runner, Tally};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

/// A worker's message.
#[derive(Serialize, Deserialize)]
pub enum Message {
    /// The worker begins with a form.
    Begins(String),
    /// This many more cases are done.
    Done(u64),
    /// A case differs.
    Mismatch(Box<Mismatch>),
    /// All the work is done.
    Totals(BTreeMap<String, Tally>),
}

/// The parts of a message that [`supervise`] reads.
pub trait Progress {
    /// Returns the item with which the worker begins.
    fn begins(&self) -> Option<&str> {
        None
    }

    /// Returns true if this is the worker's last message.
    fn is_last(&self) -> bool;
}

impl Progress for Message {
    fn begins(&self) -> Option<&str> {
        if let Self::Begins(form) = self { Some(form) } else { None }
    }

    fn is_last(&self) -> bool {
        matches!(self, Self::Totals(_))
    }
}

/// Parses "I/N" into the worker's number and the number of workers.
pub fn share(shard: &str) -> Result<(u64, u64)> {
    let (own, of) = shard.split_once('/').context("--shard wants I/N")?;
    Ok((own.parse()?, of.parse::<u64>()?.max(1)))
}

/// Does a worker's share: every N-th case of each form.
pub fn work(mut runner: Runner, forms: &[Form], indices: Range<u64>, shard: &str) -> Result<()> {
    let (own, of) = share(shard)?;
    let mut out = std::io::stdout().lock();
    let mut failed = None;
    let mut say = |message: &Message| {
        let sent = serde_json::to_string(message).map_err(anyhow::Error::from).and_then(|line| {
            writeln!(out, "{line}")?;
            out.flush().map_err(anyhow::Error::from)
        });
        failed = failed.take().or(sent.err());
    };
    let share = indices.clone().skip(own as usize).step_by(of as usize);
    let totals = runner.run(forms, share, |event| match event {
        Report::Begins(code) => say(&Message::Begins(format!("{code:?}"))),
        Report::Done(cases) => say(&Message::Done(cases)),
        Report::Mismatch(mismatch) => say(&Message::Mismatch(mismatch)),
    });
    say(&Message::Totals(totals));
    failed.map_or(Ok(()), Err)
}

fn start(worker: usize, jobs: usize) -> Result<Child> {
    let program = std::env::current_exe().context("finding the program itself")?;
    let child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .arg("--shard")
        .arg(format!("{worker}/{jobs}"))
        .stdout(Stdio::piped())
        .spawn();
    child.context("starting a worker")
}

/// Starts workers and passes on their messages.
pub fn supervise<M>(jobs: usize, mut hear: impl FnMut(M)) -> Result<()>
where
    M: Progress + DeserializeOwned + Send + 'static,
{
    let (sender, receiver) = mpsc::channel();
    let mut readers = Vec::new();
    for worker in 0..jobs {
        let mut child = start(worker, jobs)?;
        let stdout = child.stdout.take().context("no output of the worker")?;
        let sender = sender.clone();
        readers.push(std::thread::spawn(move || -> Result<()> {
            let mut form = String::new();
            let mut complete = false;
            for line in BufReader::new(stdout).lines() {
                let message: M = serde_json::from_str(&line?).context("what a worker says")?;
                if let Some(begun) = message.begins() {
                    form = begun.to_string();
                }
                complete |= message.is_last();
                // The receiver outlives all senders.
                let _ = sender.send(message);
            }
            let status = child.wait()?;
            match (status.success(), complete, form.is_empty()) {
                (true, true, _) => Ok(()),
                (_, _, true) => bail!("a worker could not start ({status})"),
                _ => Err(anyhow!("a worker died ({status}) in cases of {form}")),
            }
        }));
    }
    drop(sender);
    for message in receiver {
        hear(message);
    }
    for reader in readers {
        reader.join().map_err(|_| anyhow!("a reader of a worker's output panicked"))??;
    }
    Ok(())
}
