//! CUDA C++ around a kernel's text that makes it callable on NVIDIA GPUs (`shims/cuda`).

use crate::{Activation, Text};

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../shims/cuda/", $name)))),*]
    };
}

/// The headers that a unit includes, by name: Metal's standard library in CUDA. They include NVIDIA's `cuda_fp16.h` and
/// `cuda_bf16.h`.
pub const CUDA_HEADERS: &[(&str, &str)] = headers![
    "metal_atomic",
    "metal_attributes",
    "metal_integer",
    "metal_math",
    "metal_quadgroup",
    "metal_simdgroup",
    "metal_simdgroup_matrix",
    "metal_stdlib",
    "metal_types",
    "metal_vector",
];

/// How NVRTC has to compile a unit, beside the architecture, the folder of NVIDIA's headers, and
/// `-DFUNCTION_CONSTANT_n=` of each function constant and `-DLAUNCH_THREADS=`, the threads of a threadgroup, by which the registers
/// of each are bounded. A multiplication and an addition become one only where the text says `fma`: bits must not depend on the
/// compiler.
pub const CUDA_OPTIONS: &[&str] =
    &["--std=c++17", "--fmad=false", "--device-as-default-execution-space", "-diag-suppress=1097"];

/// The source of a unit that exports the kernel as [`cuda_symbol`]: its buffers in their order (structs by value), then for each
/// `TG_PARAM(n)` the byte offset of it in the launch's dynamic shared memory, a u32.
pub fn cuda_unit(text: &Text, activation: Activation) -> String {
    let (mut formal, mut offsets, mut arguments) = (Vec::new(), Vec::new(), Vec::new());
    for p in text.parameters {
        match p.attribute {
            "TG_PARAM" => {
                offsets.push(format!("uint {}__offset", p.name));
                arguments.push(format!("({})(gpu::parameter_memory() + {}__offset)", p.kind, p.name));
            }
            "buffer" => {
                formal.push(format!("{} {}", p.kind.trim_end_matches(['&', ' ']), p.name));
                arguments.push(p.name.to_owned());
            }
            place => arguments.push(format!("gpu::{place}()")),
        }
    }
    formal.append(&mut offsets);
    format!(
        "#define ACT {}\n#define ACT_IS_{}\n#line 1 \"{}\"\n{}\nextern \"C\" __global__ void \
         __launch_bounds__(LAUNCH_THREADS) {}({}) {{\n    {}({});\n}}\n",
        activation.metal(),
        activation.name().to_uppercase(),
        text.path,
        text.source,
        cuda_symbol(text),
        formal.join(", "),
        text.name,
        arguments.join(", "),
    )
}

/// The name of a text's kernel in its unit.
pub fn cuda_symbol(text: &Text) -> String {
    format!("{}__cuda", text.name)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_header_of_the_shim_is_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("shims/cuda");
        let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
        let mut files: Vec<String> = files.collect();
        files.sort();
        assert_eq!(files, CUDA_HEADERS.iter().map(|h| h.0).collect::<Vec<_>>());
    }

    #[test]
    fn a_unit_passes_structs_by_value_and_memory_by_offset() {
        let text = Text {
            name: "sum",
            path: "src/sum.metal",
            source: "kernel void sum();",
            parameters: &[
                crate::TextParameter { kind: "device const ACT*", name: "x", attribute: "buffer", index: 0 },
                crate::TextParameter {
                    kind: "constant SumParams&",
                    name: "p",
                    attribute: "buffer",
                    index: 1,
                },
                crate::TextParameter {
                    kind: "threadgroup float*",
                    name: "part",
                    attribute: "TG_PARAM",
                    index: 0,
                },
                crate::TextParameter {
                    kind: "uint",
                    name: "lane",
                    attribute: "thread_index_in_simdgroup",
                    index: 0,
                },
            ],
            constants: &[],
        };
        let unit = cuda_unit(&text, Activation::Bf16);
        assert!(unit.starts_with("#define ACT bfloat\n#define ACT_IS_BF16\n"), "{unit}");
        let head = "sum__cuda(device const ACT* x, constant SumParams p, uint part__offset) {";
        assert!(unit.contains(head), "{unit}");
        let call = "sum(x, p, (threadgroup float*)(gpu::parameter_memory() + part__offset), \
                    gpu::thread_index_in_simdgroup());";
        assert!(unit.contains(call), "{unit}");
    }
}
