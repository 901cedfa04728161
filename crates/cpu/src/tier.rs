//! The two execution engines for blocks, and the policy that selects between them. Both give the same state, the same
//! charges and the same virtual time; they only differ in speed.

/// Engine that executes blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tier {
    /// The interpreter alone: the reference.
    Interpreter,
    /// The translator, for every block that it can translate, from the first execution on.
    Translator,
    /// The interpreter first, and the translator for frequently executed blocks.
    #[default]
    Auto,
}
