//! The modules of a crate, as its source files declare them, and the names that each module defines, imports and uses.

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// One module of a crate. Code for tests is left out.
#[derive(Debug, Default)]
pub struct Module {
    /// The names from the root of the crate to this module.
    pub path: Vec<String>,
    pub file: PathBuf,
    pub parent: Option<usize>,
    pub children: BTreeMap<String, usize>,
    /// Types, functions, constants, traits and macros that the module defines.
    pub items: BTreeSet<String>,
    pub imports: Vec<Import>,
    /// Paths in expressions, types, patterns and the arguments of macros.
    pub paths: BTreeSet<Vec<String>>,
    /// Methods that inherent `impl` blocks of the module define.
    pub methods: BTreeSet<String>,
    /// Methods that the module calls.
    pub calls: BTreeSet<String>,
}

/// A name that a `use` declaration brings into a module.
#[derive(Clone, Debug)]
pub struct Import {
    /// The name in the importing module; `None` for all names of a module (`use path::*`).
    pub name: Option<String>,
    pub path: Vec<String>,
    /// Says whether other modules may use the name from here.
    pub public: bool,
}

/// Reads the modules below the root file of a crate. The first one is the root.
pub fn read(root: &Path) -> Result<Vec<Module>> {
    let mut modules = vec![Module { file: root.to_owned(), ..Module::default() }];
    let folder = root.parent().context("the root of a crate is in no folder")?.to_owned();
    read_file(&mut modules, 0, &folder)?;
    Ok(modules)
}

/// Reads the file of a module. `folder` is the place for files of its children.
fn read_file(modules: &mut Vec<Module>, at: usize, folder: &Path) -> Result<()> {
    let file = modules[at].file.clone();
    let text = std::fs::read_to_string(&file).with_context(|| format!("can't read {}", file.display()))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("can't parse {}", file.display()))?;
    read_items(modules, at, &parsed.items, folder)
}

fn read_items(modules: &mut Vec<Module>, at: usize, items: &[Item], folder: &Path) -> Result<()> {
    for item in items {
        let mut names = Names::default();
        names.visit_item(item);
        if let Some(name) = defined(item) {
            names.items.insert(name);
        }
        let module = &mut modules[at];
        module.items.append(&mut names.items);
        module.imports.append(&mut names.imports);
        module.paths.append(&mut names.paths);
        module.methods.append(&mut names.methods);
        module.calls.append(&mut names.calls);
        let Item::Mod(child) = item else { continue };
        if is_for_tests(&child.attrs) {
            continue;
        }
        let name = child.ident.to_string();
        let mut path = modules[at].path.clone();
        path.push(name.clone());
        let inner = folder.join(&name);
        let (index, parent_file) = (modules.len(), modules[at].file.clone());
        modules[at].children.insert(name.clone(), index);
        let mut new = Module { path, parent: Some(at), ..Module::default() };
        if let Some((_, items)) = &child.content {
            new.file = parent_file;
            modules.push(new);
            read_items(modules, index, items, &inner)?;
            continue;
        }
        let named = child.attrs.iter().find(|attribute| attribute.path().is_ident("path"));
        new.file = match named {
            Some(attribute) => parent_file.with_file_name(path_attribute(attribute)?),
            None => {
                let candidates = [folder.join(format!("{name}.rs")), inner.join("mod.rs")];
                let Some(file) = candidates.into_iter().find(|file| file.exists()) else {
                    bail!("{} declares the module {name}, which has no file", parent_file.display());
                };
                file
            }
        };
        modules.push(new);
        read_file(modules, index, &inner)?;
    }
    Ok(())
}

fn path_attribute(attribute: &Attribute) -> Result<String> {
    match &attribute.meta.require_name_value()?.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Ok(text.value()),
        _ => bail!("the attribute `path` of a module is no string"),
    }
}

/// Returns the name that an item adds to its module.
fn defined(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Says whether an item exists only in tests: it has a `cfg` attribute that names `test`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let names_test = |tokens: &TokenStream| any_ident(tokens, &|ident| ident == "test");
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg") && list.is_ok_and(|list| names_test(&list.tokens))
    })
}

fn any_ident(tokens: &TokenStream, is: &dyn Fn(&str) -> bool) -> bool {
    tokens.clone().into_iter().any(|token| match token {
        TokenTree::Ident(ident) => is(&ident.to_string()),
        TokenTree::Group(group) => any_ident(&group.stream(), is),
        _ => false,
    })
}

/// Collects the names of one item.
#[derive(Default)]
struct Names {
    items: BTreeSet<String>,
    imports: Vec<Import>,
    paths: BTreeSet<Vec<String>>,
    methods: BTreeSet<String>,
    calls: BTreeSet<String>,
}

impl Names {
    fn import(&mut self, tree: &UseTree, path: &mut Vec<String>, public: bool) {
        match tree {
            UseTree::Path(tree) => {
                path.push(tree.ident.to_string());
                self.import(&tree.tree, path, public);
                path.pop();
            }
            UseTree::Group(tree) => tree.items.iter().for_each(|tree| self.import(tree, path, public)),
            UseTree::Glob(_) => self.imports.push(Import { name: None, path: path.clone(), public }),
            UseTree::Name(_) | UseTree::Rename(_) => {
                let (ident, name) = match tree {
                    UseTree::Rename(tree) => (tree.ident.to_string(), tree.rename.to_string()),
                    UseTree::Name(tree) if tree.ident == "self" => {
                        ("self".to_owned(), path.last().cloned().unwrap_or_default())
                    }
                    UseTree::Name(tree) => (tree.ident.to_string(), tree.ident.to_string()),
                    _ => return,
                };
                let mut path = path.clone();
                if ident != "self" || path.is_empty() {
                    path.push(ident);
                }
                self.imports.push(Import { name: Some(name), path, public });
            }
        }
    }

    /// Collects paths and method calls of a macro's arguments, which have no syntax tree.
    fn tokens(&mut self, tokens: &TokenStream) {
        let (mut path, mut colons, mut dot) = (Vec::new(), 0, false);
        for token in tokens.clone() {
            match token {
                TokenTree::Ident(ident) => {
                    if colons < 2 {
                        self.paths.insert(std::mem::take(&mut path));
                    }
                    if dot {
                        self.calls.insert(ident.to_string());
                    } else {
                        path.push(ident.to_string());
                    }
                    (colons, dot) = (0, false);
                }
                TokenTree::Punct(punct) => {
                    dot = punct.as_char() == '.';
                    colons = if punct.as_char() == ':' { colons + 1 } else { 0 };
                    if colons == 0 {
                        self.paths.insert(std::mem::take(&mut path));
                    }
                }
                TokenTree::Group(group) => {
                    self.paths.insert(std::mem::take(&mut path));
                    (colons, dot) = (0, false);
                    self.tokens(&group.stream());
                }
                TokenTree::Literal(_) => (colons, dot) = (0, false),
            }
        }
        self.paths.insert(path);
        self.paths.remove(&Vec::new());
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes: &[Attribute] = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &[],
        };
        // A child module is a module of its own.
        if !matches!(item, Item::Mod(_)) && !is_for_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let public = !matches!(item.vis, Visibility::Inherited);
        self.import(&item.tree, &mut Vec::new(), public);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.paths.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(&call.tokens);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none() {
            let functions = item.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(function) if !is_for_tests(&function.attrs) => Some(function.sig.ident.to_string()),
                _ => None,
            });
            self.methods.extend(functions);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.calls.insert(call.method.to_string());
        visit::visit_expr_method_call(self, call);
    }
}
