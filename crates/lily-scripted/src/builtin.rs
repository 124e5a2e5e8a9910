//! The tokenizer and template that are used where no `--tokenizer` is given: those of the nano fixture.

use lily_text::{TextError, TextModel, TextParts};

macro_rules! nano {
    ($name:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/nano/", $name)
    };
}

/// The text side of the nano fixture, from the program itself.
pub fn builtin_text() -> Result<TextModel, TextError> {
    TextModel::from_parts(TextParts {
        tokenizer_json: include_bytes!(nano!("tokenizer.json")),
        tokenizer_config_json: Some(include_bytes!(nano!("tokenizer_config.json"))),
        chat_template: Some(include_str!(nano!("chat_template.jinja"))),
    })
}
