//! The cores that are built in.

macro_rules! core {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../../../profiles/cores/", $name, ".toml")),
            include_str!(concat!("../../../../profiles/cores/", $name, ".forms")),
        )
    };
}

/// Name, parameters and forms of each core, sorted by name.
pub const CORES: [(&str, &str, &str); 10] = [
    core!("broadwell"),
    core!("cascadelake"),
    core!("goldencove"),
    core!("haswell"),
    core!("icelake"),
    core!("skylakex"),
    core!("zen2"),
    core!("zen3"),
    core!("zen4"),
    core!("zen5"),
];
