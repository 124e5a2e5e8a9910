//! C++ around a kernel's text that makes it callable in the emulator (`shims/emu`).

use std::fmt::Write;

use crate::{Activation, Text};

/// The source of a translation unit that registers the kernel under its name and the type of its activations, and exports
/// what it registers as [`emulator_symbol`]. The text stands in a namespace of its own: helpers of one name, in different
/// texts or with different activations, are different functions.
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
    let (name, constants, symbol) = (text.name, text.constants.len(), emulator_symbol(text, activation));
    let mut out = format!(
        "#define ACT {}\n#define ACT_IS_{}\n#include \"kernels.h\"\n#include <metal_stdlib>\n\
         #include <metal_simdgroup_matrix>\n\
         #ifdef TILE_MPP\n#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n#endif\n\
         namespace {{\n",
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
        "}}\n}}\nextern \"C\" {{ extern const emu::Kernel {symbol}; }}\n\
         const emu::Kernel {symbol} = {{\"{name}\", \"{}\", lily_entry, lily_set, {}, {constants}}};\n\
         static const emu::Register lily_register({symbol});",
        activation.name(),
        text.buffers()
    );
    out
}

/// The name under which the unit of [`emulator_unit`] exports its `emu::Kernel`.
pub fn emulator_symbol(text: &Text, activation: Activation) -> String {
    format!("lily_kernel_{}_{}", text.name, activation.name())
}
