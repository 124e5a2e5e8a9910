//! A kernel's text as Metal's own compiler takes it.

use crate::{Activation, Text};

/// The source of a text for one type of activations; its kernel keeps its name. With `tensors`, tiles are multiplied by the tensor
/// operations of Metal 4. To be compiled without fast math: bits must not depend on the compiler.
pub fn metal_unit(text: &Text, activation: Activation, tensors: bool) -> String {
    format!(
        "#define ACT {}\n#define ACT_IS_{}\n{}#line 1 \"{}\"\n{}",
        activation.metal(),
        activation.name().to_uppercase(),
        if tensors { "#define TILE_MPP\n" } else { "" },
        text.path,
        text.source,
    )
}

/// What the word of a function constant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WordKind {
    /// `uint`.
    U32,
    /// `int`.
    I32,
    /// `float`, by its bits.
    F32,
    /// `bool`: not 0.
    Bool,
}

/// Of the name of a type as texts write it ([`Text::constants`]).
pub fn word_kind(name: &str) -> Option<WordKind> {
    match name {
        "uint" => Some(WordKind::U32),
        "int" => Some(WordKind::I32),
        "float" => Some(WordKind::F32),
        "bool" => Some(WordKind::Bool),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bindings::TEXTS;

    #[test]
    fn a_unit_names_the_type_and_the_file() {
        let unit = metal_unit(TEXTS[0], Activation::F16, true);
        let head = format!(
            "#define ACT half\n#define ACT_IS_F16\n#define TILE_MPP\n#line 1 \"{}\"\n",
            TEXTS[0].path
        );
        assert!(unit.starts_with(&head) && unit.ends_with(TEXTS[0].source), "{unit}");
        assert!(!metal_unit(TEXTS[0], Activation::F16, false).contains("#define TILE_MPP"));
    }

    #[test]
    fn every_constant_of_every_text_is_a_word() {
        let unknown: Vec<_> =
            TEXTS.iter().flat_map(|t| t.constants).filter(|(kind, _)| word_kind(kind).is_none()).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
