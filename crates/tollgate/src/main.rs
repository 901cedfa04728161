//! The `tollgate` command line: parses, calls the libraries, prints.

fn main() {}
