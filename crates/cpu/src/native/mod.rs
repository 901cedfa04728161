//! The host's own vector units: requirements, and stubs of machine code that execute one guest instruction each.

#[allow(unsafe_code, reason = "executable memory is mapped")]
mod executable;
mod pool;
#[allow(unsafe_code, reason = "the host is asked for memory")]
mod prefetch;
#[allow(unsafe_code, reason = "stubs are machine code")]
mod stub;
mod units;
#[allow(unsafe_code, reason = "stubs are machine code")]
mod wide;

pub(crate) use executable::Executable;
#[cfg(test)]
pub(crate) use pool::publish;
pub(crate) use prefetch::prefetch;
pub use stub::{Extra, HOST_MXCSR, OperandKind, Stub, StubPlan, load_mxcsr};
pub(crate) use units::decides_by_loop;
pub use units::{decide_by_loop, executes, host_has, limit_to_256_bits, wide};
pub(crate) use wide::{Kind, WidePlan, WideStub};

use thiserror::Error;

/// Reason for which this host cannot run the processor.
#[derive(Debug, Error)]
pub enum HostError {
    /// The host lacks extensions with which vector instructions are executed.
    #[error("this host's processor lacks {0}; x86-64-v3 with AES and PCLMULQDQ is needed")]
    Missing(String),
    /// The host denies memory that is writable at one address and executable at another.
    #[error("cannot get executable memory")]
    Executable(#[from] std::io::Error),
}

/// Checks that this host can run the processor: x86-64-v3, AES, PCLMULQDQ, and executable memory.
pub fn host_supported() -> Result<(), HostError> {
    macro_rules! missing {
        ($($name:tt)*) => {
            [$(($name, std::arch::is_x86_feature_detected!($name))),*]
                .iter()
                .filter(|(_, there)| !there)
                .map(|(name, _)| *name)
                .collect::<Vec<_>>()
        };
    }
    let missing = missing!("sse3" "ssse3" "sse4.1" "sse4.2" "popcnt" "avx" "avx2" "fma" "f16c" "bmi1" "bmi2" "lzcnt" "movbe" "aes" "pclmulqdq");
    if !missing.is_empty() {
        return Err(HostError::Missing(missing.join(", ").to_uppercase()));
    }
    Ok(pool::ready()?)
}
