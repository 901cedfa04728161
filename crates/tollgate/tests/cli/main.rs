//! The program as a user meets it: what it says, on which stream, and with which exit status.

mod limits;
mod output;
mod program;
mod report;
mod run;
mod wrong_use;
