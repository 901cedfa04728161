//! Events in non-root mode.
