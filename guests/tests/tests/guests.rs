//! Runs guests on the program `tollgate`, each as one test.

fn main() -> std::process::ExitCode {
    guest_tests::main()
}
