//! Arrows between the modules of a crate: which one names what another one defines.

use crate::source::Module;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Pairs of indices of modules: the first one names something that the second one defines.
pub type Arrows = BTreeSet<(usize, usize)>;

/// Returns the arrows that paths make: imports, and paths in code. A module that only hands on names of its descendants does not use them.
pub fn of_paths(modules: &[Module]) -> Arrows {
    let (mut arrows, mut lookup) = (Arrows::new(), Lookup::new(modules));
    for (at, module) in modules.iter().enumerate() {
        for import in &module.imports {
            let Some(target) = lookup.path(at, &import.path) else { continue };
            let hands_on = import.public && modules[target].path.starts_with(&module.path);
            if !hands_on {
                arrows.insert((at, target));
            }
        }
        arrows.extend(module.paths.iter().filter_map(|path| Some((at, lookup.path(at, path)?))));
    }
    arrows.retain(|(from, to)| modules[*from].file != modules[*to].file);
    arrows
}

/// Returns the arrows of method calls, as far as they can be known without types: calls of a name that inherent `impl` blocks of one module alone
/// define.
pub fn of_methods(modules: &[Module]) -> Arrows {
    let mut defined: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (at, module) in modules.iter().enumerate() {
        module.methods.iter().for_each(|name| _ = defined.entry(name).or_default().insert(at));
    }
    let mut arrows = Arrows::new();
    for (at, module) in modules.iter().enumerate() {
        for owners in module.calls.iter().filter_map(|name| defined.get(&name[..])) {
            if let [owner] = owners.iter().copied().collect::<Vec<_>>()[..] {
                arrows.insert((at, owner));
            }
        }
    }
    arrows.retain(|(from, to)| modules[*from].file != modules[*to].file);
    arrows
}

/// What a path leads to: a module, or something that a module defines.
#[derive(Clone, Copy)]
enum Found {
    Module(usize),
    Item(usize),
}

/// Looks names up as the compiler does, as far as that needs no types and no expansion of macros.
struct Lookup<'a> {
    modules: &'a [Module],
    /// What was found for a name in a module. A name that is being looked up has no result yet, which ends circles of imports.
    known: HashMap<(usize, &'a str), Option<Found>>,
}

impl<'a> Lookup<'a> {
    fn new(modules: &'a [Module]) -> Self {
        Self { modules, known: HashMap::new() }
    }

    /// Returns the module that defines what `path` names in the module `at`; `None` for a name from another crate or one that is local to a
    /// function.
    fn path(&mut self, at: usize, path: &'a [String]) -> Option<usize> {
        match self.resolve(at, path)? {
            Found::Module(module) | Found::Item(module) => Some(module),
        }
    }

    fn resolve(&mut self, at: usize, path: &'a [String]) -> Option<Found> {
        let (first, rest) = path.split_first()?;
        match &first[..] {
            "crate" => Some(self.descend(Found::Module(0), rest)),
            "self" => Some(self.descend(Found::Module(at), rest)),
            "super" => {
                let ups = path.iter().take_while(|segment| *segment == "super").count();
                let base = (0..ups).try_fold(at, |base, _| self.modules[base].parent)?;
                Some(self.descend(Found::Module(base), &path[ups..]))
            }
            _ => {
                let start = self.name(at, first)?;
                Some(self.descend(start, rest))
            }
        }
    }

    /// Follows a path downwards. A name that a module does not have counts as its own: a macro may define it.
    fn descend(&mut self, start: Found, path: &'a [String]) -> Found {
        path.iter().fold(start, |found, name| match found {
            Found::Module(module) => self.name(module, name).unwrap_or(Found::Item(module)),
            item @ Found::Item(_) => item,
        })
    }

    /// Looks up a name that a module defines or imports.
    fn name(&mut self, at: usize, name: &'a str) -> Option<Found> {
        let module = &self.modules[at];
        if let Some(child) = module.children.get(name) {
            return Some(Found::Module(*child));
        }
        if module.items.contains(name) {
            return Some(Found::Item(at));
        }
        if let Some(known) = self.known.get(&(at, name)) {
            return *known;
        }
        self.known.insert((at, name), None);
        let named = module.imports.iter().find(|import| import.name.as_deref() == Some(name));
        let found = match named {
            Some(import) => self.resolve(at, &import.path),
            None => module.imports.iter().filter(|import| import.name.is_none()).find_map(|import| {
                match self.resolve(at, &import.path)? {
                    Found::Module(target) if target != at => self.name(target, name),
                    _ => None,
                }
            }),
        };
        self.known.insert((at, name), found);
        found
    }
}
