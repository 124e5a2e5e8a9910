//! C++ around a kernel's text that makes it callable in the emulator (`shims/emu`).

use std::fmt::Write;

use crate::{Activation, Text};

/// The source of a translation unit that registers the kernel under its name and the type of its activations.
pub fn emulator_unit(text: &Text, activation: Activation) -> String {
    let argument = |p: &crate::TextParameter| match p.attribute {
        "TG_PARAM" => format!("({})emu::tg_parameter({})", p.kind, p.index),
        "buffer" if p.kind.ends_with('&') => {
            format!("*({}*)buffers[{}]", p.kind.trim_end_matches('&'), p.index)
        }
        "buffer" => format!("({})buffers[{}]", p.kind, p.index),
        place => format!("emu::{place}()"),
    };
    let arguments: Vec<String> = text.parameters.iter().map(argument).collect();
    let (name, constants) = (text.name, text.constants.len());
    let mut out = format!(
        "#define ACT {}\n#define ACT_IS_{}\n#include \"kernels.h\"\n",
        activation.metal(),
        activation.name().to_uppercase()
    );
    // The file that diagnostics name; lines are those of the text with its headers in it.
    let _ = writeln!(out, "#line 1 \"{}\"\n{}", text.path, text.source);
    let _ = writeln!(
        out,
        "static void lily_entry(void* user) {{\n    auto buffers = (void* const*)user;\n    (void)buffers;\n    {name}({});\n}}",
        arguments.join(", ")
    );
    out.push_str("static void lily_set(const unsigned* values) {\n    (void)values;\n");
    for (i, (kind, constant)) in text.constants.iter().enumerate() {
        let _ = writeln!(out, "    {constant} = emu::constant_of<{kind}>(values[{i}]);");
    }
    let _ = writeln!(
        out,
        "}}\nstatic const emu::Register lily_register({{\"{name}\", \"{}\", lily_entry, lily_set, {}, {constants}}});",
        activation.name(),
        text.buffers()
    );
    out
}
