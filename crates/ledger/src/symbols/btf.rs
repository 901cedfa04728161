//! The layout of a kernel's structures, from the BTF (the types that CONFIG_DEBUG_INFO_BTF describes) in its memory.
//!
//! The memory may hold any values: every access is checked, and every search is bounded.

/// The header's first two bytes.
const MAGIC: u16 = 0xeb9f;
/// Modifiers and names around a type that are looked through.
const MOST_MODIFIERS: usize = 32;
/// Unnamed structures in one another that are looked into.
const DEEPEST_UNNAMED: usize = 4;
/// Bytes of a type without the data that its kind adds.
const TYPE: usize = 12;
/// Bytes of a member of a structure.
const MEMBER: usize = 12;

/// Kinds of types that matter here; the numbers are of the format.
mod kind {
    pub const ARRAY: u32 = 3;
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const TYPE_TAG: u32 = 18;
}

/// Bytes of the header up to the place of the layouts, which headers of Linux 7 can have.
const LAYOUTS: usize = 24;
/// Bytes of the layout of a kind: the fixed number, the number for each item, flags.
const LAYOUT: usize = 4;

/// Bytes that follow a type, by its kind: a fixed number, and a number for each of its items. Kind 0 is no type. BTF with layouts says so itself, also of
/// kinds that are not among these.
const FOLLOWS: [(usize, usize); 20] = [
    (0, 0),
    (4, 0),
    (0, 0),
    (12, 0),
    (0, 12),
    (0, 12),
    (0, 8),
    (0, 0),
    (0, 0),
    (0, 0),
    (0, 0),
    (0, 0),
    (0, 0),
    (0, 8),
    (4, 0),
    (0, 12),
    (0, 0),
    (4, 0),
    (0, 0),
    (0, 12),
];

/// Descriptions of types.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// The offset of each type, from number 1 on.
    places: Vec<u32>,
}

/// The number of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeId(u32);

/// A member of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the structure's start.
    pub offset: u64,
    /// Its type.
    pub of: TypeId,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// The kind in the second word of a type: seven bits since Linux 7, of which earlier kernels use five.
fn kind_of(info: u32) -> u32 {
    info >> 24 & 0x7f
}

/// The number of items there: 24 bits since Linux 7, of which earlier kernels use sixteen.
fn items(info: u32) -> usize {
    (info & 0xff_ffff) as usize
}

/// A part of what follows the header.
fn section(bytes: &[u8], header: usize, offset: usize) -> Option<&[u8]> {
    let start = header.checked_add(u32_at(bytes, offset)? as usize)?;
    bytes.get(start..start.checked_add(u32_at(bytes, offset + 4)? as usize)?)
}

impl<'a> Btf<'a> {
    /// Reads the index of types. Returns `None` if these bytes are no BTF, or one with unknown kinds and no layouts.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        if bytes.get(..2)? != MAGIC.to_le_bytes() {
            return None;
        }
        let header = u32_at(bytes, 4)? as usize;
        let (types, strings) = (section(bytes, header, 8)?, section(bytes, header, 16)?);
        let layouts = if header >= LAYOUTS + 8 { section(bytes, header, LAYOUTS)? } else { &[] };
        let follows = |kind: usize| match layouts.get(LAYOUT * kind..LAYOUT * kind + LAYOUT) {
            Some(layout) => Some((usize::from(layout[0]), usize::from(layout[1]))),
            None => FOLLOWS.get(kind).copied(),
        };
        let mut places = Vec::new();
        let mut at = 0;
        while at < types.len() {
            let info = u32_at(types, at + 4)?;
            let (fixed, each) = follows(kind_of(info) as usize)?;
            places.push(u32::try_from(at).ok()?);
            at += TYPE + fixed + each * items(info);
        }
        Some(Self { types, strings, places })
    }

    fn place(&self, id: TypeId) -> Option<usize> {
        Some(*self.places.get(id.0.checked_sub(1)? as usize)? as usize)
    }

    fn info(&self, place: usize) -> Option<u32> {
        u32_at(self.types, place + 4)
    }

    fn kind(&self, place: usize) -> Option<u32> {
        self.info(place).map(kind_of)
    }

    /// Returns true if the name at the start of a type or of a member is `name`.
    fn is_named(&self, place: usize, name: &str) -> bool {
        let string = u32_at(self.types, place).and_then(|at| self.strings.get(at as usize..));
        string.and_then(|s| s.strip_prefix(name.as_bytes())).is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Returns the structure of a name.
    pub fn structure(&self, name: &str) -> Option<TypeId> {
        let matches = |place: usize| self.kind(place) == Some(kind::STRUCT) && self.is_named(place, name);
        let index = self.places.iter().position(|place| matches(*place as usize))?;
        Some(TypeId(u32::try_from(index + 1).ok()?))
    }

    /// Returns the type behind type definitions and qualifiers.
    fn resolve(&self, mut id: TypeId) -> Option<usize> {
        for _ in 0..MOST_MODIFIERS {
            let place = self.place(id)?;
            match self.kind(place)? {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = TypeId(u32_at(self.types, place + 8)?);
                }
                _ => return Some(place),
            }
        }
        None
    }

    /// A member of a structure that begins with a whole byte; those of unnamed structures within it are its own.
    pub fn field(&self, structure: TypeId, name: &str) -> Option<Field> {
        self.field_within(structure, name, DEEPEST_UNNAMED)
    }

    fn field_within(&self, structure: TypeId, name: &str, depth: usize) -> Option<Field> {
        let is_structure = |place: &usize| matches!(self.kind(*place), Some(kind::STRUCT | kind::UNION));
        let place = self.resolve(structure).filter(is_structure)?;
        let info = self.info(place)?;
        let members = || (0..items(info)).map(|i| place + TYPE + MEMBER * i);
        let of = |member: usize| u32_at(self.types, member + 4).map(TypeId);
        let offset = |member: usize| {
            let offset = u32_at(self.types, member + 8)?;
            // With the flag the upper bits are the width of a bit field.
            let bits = if info >> 31 != 0 { offset & 0xff_ffff } else { offset };
            bits.is_multiple_of(8).then_some(u64::from(bits / 8))
        };
        if let Some(member) = members().find(|member| self.is_named(*member, name)) {
            return Some(Field { offset: offset(member)?, of: of(member)? });
        }
        let depth = depth.checked_sub(1)?;
        members().filter(|member| self.is_named(*member, "")).find_map(|member| {
            let inner = self.field_within(of(member)?, name, depth)?;
            Some(Field { offset: offset(member)?.checked_add(inner.offset)?, ..inner })
        })
    }

    /// Returns the first bit of a bit field of a structure, and the number of its bits.
    pub fn bits(&self, structure: TypeId, name: &str) -> Option<(u32, u32)> {
        let place = self.resolve(structure).filter(|place| self.kind(*place) == Some(kind::STRUCT))?;
        let info = self.info(place)?;
        let members = (0..items(info)).map(|i| place + TYPE + MEMBER * i);
        let member = members.into_iter().find(|member| self.is_named(*member, name))?;
        let offset = u32_at(self.types, member + 8)?;
        (info >> 31 != 0 && offset >> 24 != 0).then_some((offset & 0xff_ffff, offset >> 24))
    }

    /// Returns the size of a structure in bytes.
    pub fn size(&self, structure: TypeId) -> Option<u64> {
        let place = self.resolve(structure).filter(|place| self.kind(*place) == Some(kind::STRUCT))?;
        u32_at(self.types, place + 8).map(u64::from)
    }

    /// Returns the type and the number of an array's elements.
    pub fn array(&self, id: TypeId) -> Option<(TypeId, u32)> {
        let place = self.resolve(id).filter(|place| self.kind(*place) == Some(kind::ARRAY))?;
        Some((TypeId(u32_at(self.types, place + TYPE)?), u32_at(self.types, place + TYPE + 8)?))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// BTF to be.
    #[derive(Default)]
    pub struct Writer {
        types: Vec<u8>,
        strings: Vec<u8>,
        count: u32,
    }

    impl Writer {
        fn string(&mut self, name: &str) -> u32 {
            if self.strings.is_empty() {
                self.strings.push(0);
            }
            let at = self.strings.len() as u32;
            self.strings.extend_from_slice(name.as_bytes());
            self.strings.push(0);
            at
        }

        fn words(&mut self, words: &[u32]) {
            words.iter().for_each(|word| self.types.extend_from_slice(&word.to_le_bytes()));
        }

        /// Adds a type with what follows it; returns its number.
        pub fn add(&mut self, name: &str, kind: u32, items: u32, size: u32, follows: &[u32]) -> u32 {
            let name = self.string(name);
            self.words(&[name, kind << 24 | items, size]);
            self.words(follows);
            self.count += 1;
            self.count
        }

        /// Adds a structure of members with their types and offsets in bytes.
        pub fn structure(&mut self, name: &str, size: u32, members: &[(&str, u32, u32)]) -> u32 {
            let mut follows = Vec::new();
            for (member, of, offset) in members {
                follows.extend_from_slice(&[self.string(member), *of, offset * 8]);
            }
            self.add(name, kind::STRUCT, members.len() as u32, size, &follows)
        }

        /// Adds an array.
        pub fn array(&mut self, of: u32, count: u32) -> u32 {
            self.add("", kind::ARRAY, 0, 0, &[of, 1, count])
        }

        pub fn bytes(&self) -> Vec<u8> {
            let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
            let mut out = vec![0x9f, 0xeb, 1, 0];
            [24, 0, types, types, strings].iter().for_each(|n: &u32| out.extend_from_slice(&n.to_le_bytes()));
            [out, self.types.clone(), self.strings.clone()].concat()
        }

        /// The same in the form of Linux 7: with the layout of each of the kinds up to `last`, of which those that are not known have one word for each
        /// item.
        pub fn bytes_with_layouts(&self, last: usize) -> Vec<u8> {
            let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
            let layouts = (0..=last).flat_map(|kind| {
                let (fixed, each) = FOLLOWS.get(kind).copied().unwrap_or((0, 4));
                [fixed as u8, each as u8, 0, 0]
            });
            let layouts: Vec<u8> = layouts.collect();
            let mut out = vec![0x9f, 0xeb, 1, 0];
            let header = [32, 0, types, types, strings, types + strings, layouts.len() as u32];
            header.iter().for_each(|n: &u32| out.extend_from_slice(&n.to_le_bytes()));
            [out, self.types.clone(), self.strings.clone(), layouts].concat()
        }
    }

    fn example() -> Vec<u8> {
        let mut w = Writer::default();
        let int = w.add("int", 1, 0, 4, &[0x20]);
        w.add("choice", 6, 2, 4, &[0, 0, 0, 1]);
        let array = w.array(int, 5);
        let inner = w.structure("inner", 24, &[("a", int, 0), ("list", array, 4)]);
        let constant = w.add("", kind::CONST, 0, inner, &[]);
        let named = w.add("inner_t", kind::TYPEDEF, 0, constant, &[]);
        let unnamed = w.structure("", 8, &[("deep", int, 4)]);
        w.structure("outer", 48, &[("first", int, 0), ("second", named, 8), ("", unnamed, 32)]);
        w.bytes()
    }

    #[test]
    fn members_are_found_through_type_definitions() {
        let bytes = example();
        let btf = Btf::parse(&bytes).expect("is BTF");
        let outer = btf.structure("outer").expect("is there");
        let second = btf.field(outer, "second").expect("is there");
        assert_eq!(second.offset, 8);
        let list = btf.field(second.of, "list").expect("is there");
        assert_eq!((list.offset, btf.array(list.of)), (4, Some((TypeId(1), 5))));
        assert_eq!(btf.field(outer, "deep").map(|field| field.offset), Some(36));
        assert_eq!(btf.field(outer, "sec"), None);
        assert_eq!(btf.field(list.of, "a"), None);
        assert_eq!(btf.structure("int"), None);
        assert_eq!(btf.array(outer), None);
    }

    #[test]
    fn kinds_that_are_not_known_are_skipped_where_the_btf_has_their_layout() {
        let mut w = Writer::default();
        let int = w.add("int", 1, 0, 4, &[0x20]);
        w.add("new", 0x45, 2, 0, &[7, 7]);
        w.structure("outer", 8, &[("first", int, 4)]);
        assert!(Btf::parse(&w.bytes()).is_none());
        assert!(Btf::parse(&w.bytes_with_layouts(0x44)).is_none());
        let bytes = w.bytes_with_layouts(0x45);
        let btf = Btf::parse(&bytes).expect("is BTF");
        let outer = btf.structure("outer").expect("is there");
        assert_eq!(btf.field(outer, "first"), Some(Field { offset: 4, of: TypeId(int) }));
    }

    #[test]
    fn a_type_has_more_items_than_sixteen_bits_can_count() {
        let mut w = Writer::default();
        w.add("choice", 6, 0x1_0001, 4, &[0; 0x2_0002]);
        let int = w.add("int", 1, 0, 4, &[0x20]);
        w.structure("outer", 8, &[("first", int, 4)]);
        let bytes = w.bytes();
        assert!(Btf::parse(&bytes).expect("is BTF").structure("outer").is_some());
    }

    #[test]
    fn a_type_that_is_itself_is_none() {
        let mut w = Writer::default();
        w.add("loop", kind::TYPEDEF, 0, 1, &[]);
        let bytes = w.bytes();
        assert_eq!(Btf::parse(&bytes).expect("is BTF").field(TypeId(1), "a"), None);
    }

    proptest! {
        #[test]
        fn no_damage_makes_it_panic(changes in prop::collection::vec((any::<usize>(), any::<u8>()), 0..12), cut in 0usize..400) {
            let mut bytes = example();
            for (at, byte) in changes {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len().saturating_sub(cut / 2));
            if let Some(btf) = Btf::parse(&bytes) {
                for id in 0..10 {
                    let _ = (btf.field(TypeId(id), "list"), btf.array(TypeId(id)), btf.structure("outer"));
                }
            }
        }
    }
}
