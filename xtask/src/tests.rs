use crate::source::Module;
use crate::{arrows, circles, rooms, source};
use std::path::PathBuf;

/// A crate in a folder of its own that is removed at the end.
struct Crate(PathBuf);

impl Crate {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let folder = std::env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()));
        for (file, text) in files {
            let path = folder.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Self(folder)
    }

    fn modules(&self) -> Vec<Module> {
        source::read(&self.0.join("lib.rs")).unwrap()
    }

    fn arrows(&self) -> Vec<String> {
        let modules = self.modules();
        let mut found: Vec<String> = arrows::of_paths(&modules)
            .into_iter()
            .map(|(from, to)| format!("{} -> {}", rooms::name(&modules[from]), rooms::name(&modules[to])))
            .collect();
        found.sort();
        found
    }

    fn circles(&self, methods: bool) -> Vec<Vec<String>> {
        let modules = self.modules();
        let mut found = arrows::of_paths(&modules);
        if methods {
            found.extend(arrows::of_methods(&modules));
        }
        let names = |circle: Vec<usize>| circle.into_iter().map(|at| rooms::name(&modules[at])).collect();
        circles::find(&modules, &found).into_iter().map(names).collect()
    }
}

impl Drop for Crate {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn paths_of_every_kind_are_arrows() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d; mod e; mod f; mod g;"),
        ("a.rs", "use crate::b::{One as Uno, inner::Two}; fn f(_: Uno, _: Two) {}"),
        ("b.rs", "pub mod inner; pub struct One; pub fn call() {}"),
        ("b/inner.rs", "pub struct Two; fn up() -> super::One { super::One }"),
        ("c.rs", "fn f() { crate::b::call() }"),
        ("d.rs", "use crate::b; fn f() { println!(\"{:?}\", b::inner::Two) }"),
        ("e.rs", "pub use crate::b::inner::*; use std::fmt;"),
        ("f.rs", "use super::e; fn f() -> e::Two { e::Two }"),
        ("g.rs", "#[cfg(test)] mod tests { use crate::a::f; } #[cfg(test)] fn f() { crate::a::f() }"),
    ];
    let expected = [
        "a -> b",
        "a -> b::inner",
        "b::inner -> b",
        "c -> b",
        "d -> b",
        "d -> b::inner",
        "e -> b::inner",
        // The name is handed on by `e`, and `inner` defines it.
        "f -> b::inner",
        "f -> e",
    ];
    assert_eq!(Crate::new("paths", &files).arrows(), expected);
}

#[test]
fn a_parent_that_hands_on_names_of_its_children_does_not_use_them() {
    let parent = "mod child; pub use child::One; pub struct Two;";
    let child = ("a/child.rs", "use super::Two; pub struct One(Two);");
    let handing = Crate::new("handing", &[("lib.rs", "mod a;"), ("a.rs", parent), child]);
    assert_eq!(handing.arrows(), ["a::child -> a"]);
    assert!(handing.circles(false).is_empty());
    let using = format!("{parent} fn f(_: One) {{}}");
    let using = Crate::new("using", &[("lib.rs", "mod a;"), ("a.rs", &using), child]);
    assert_eq!(using.circles(false), [["a", "a::child"]]);
}

#[test]
fn circles_are_found_by_paths_and_by_methods() {
    let files = [
        ("lib.rs", "pub struct Cpu; mod a; mod b; mod c; mod d { fn f() { crate::a::g() } }"),
        ("a.rs", "pub fn g() { crate::b::g() } impl crate::Cpu { pub fn only_here(&self) {} }"),
        ("b.rs", "pub fn g() { crate::c::g() }"),
        ("c/mod.rs", "pub fn g() { crate::a::g() }"),
    ];
    assert_eq!(Crate::new("circle", &files).circles(false), [["lib", "a", "b", "c"]]);
    let files = [
        ("lib.rs", "pub struct Cpu; mod a; mod b;"),
        ("a.rs", "impl crate::Cpu { pub fn first(&self) { self.second() } }"),
        ("b.rs", "impl crate::Cpu { pub fn second(&self) { vec![self.first()] } }"),
    ];
    let methods = Crate::new("methods", &files);
    assert!(methods.circles(false).is_empty());
    assert_eq!(methods.circles(true), [["a", "b"]]);
}

#[test]
fn forbidden_pairs_are_named_with_the_invariant() {
    let files = [
        ("lib.rs", "mod high; mod low;"),
        ("high.rs", "pub fn f() { crate::low::f() }"),
        ("low.rs", "pub fn f() {} mod inner { fn g() { crate::high::f() } }"),
    ];
    let sample = Crate::new("rooms", &files);
    let modules = sample.modules();
    let arrows = arrows::of_paths(&modules);
    let broken = |from: &str, to: &str| {
        let text = format!("[[never]]\ncrate = \"x\"\nfrom = [\"{from}\"]\nto = [\"{to}\"]\nwhy = \"Low is low.\"");
        std::fs::write(sample.0.join("rooms.toml"), text).unwrap();
        rooms::Rules::read(&sample.0.join("rooms.toml")).unwrap().broken("x", &modules, &arrows)
    };
    assert_eq!(broken("low", "high").unwrap(), ["x: low::inner names high, which it must not: Low is low."]);
    assert_eq!(broken("*", "high").unwrap().len(), 1);
    assert!(broken("lib", "high").unwrap().is_empty());
    assert_eq!(broken("low", "attic").unwrap_err().to_string(), "crate x has no module attic");
}
