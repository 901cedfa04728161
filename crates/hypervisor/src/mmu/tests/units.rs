//! Single properties of the MMUs.
