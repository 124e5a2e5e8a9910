//! Gives each tensor of a checkpoint its role, and refuses what is missing, left over, misshapen or of another type.

use std::collections::HashMap;

use super::{Checkpoint, ElementType, PREFIX};
use crate::{
    config::{Config, Quantization},
    error::{ModelError, quoted},
    geometry::{Geometry, LayerKind},
    pack::PADDING,
    weights::{
        AttentionWeights, DeltaWeights, LayerWeights, MixerWeights, MoeWeights, PlainTensor, QuantizedMatrix,
        TensorId, Weights,
    },
};

/// Parts of a multimodal checkpoint that a text engine leaves alone: the vision tower under its names in MLX and in
/// transformers, and the draft head. After the prefix `language_model.`, if any.
const SKIPPED: [&str; 5] = ["vision_tower.", "visual.", "model.visual.", "mtp.", "model.mtp."];

/// The weights by role. `config_file` is how messages name the config.
pub(crate) fn assign(
    config_file: &str,
    config: &Config,
    checkpoint: &Checkpoint,
) -> Result<Weights, ModelError> {
    refuse_hugging_face_layout(checkpoint)?;
    let Some(quantization) = &config.quantization else {
        return Err(ModelError::NotMlx {
            file: config_file.to_owned(),
            found: "there is no field `quantization`".to_owned(),
        });
    };
    let mut roles = Roles::new(config_file, checkpoint, quantization)?;
    let weights = roles.model(&config.geometry, config.tied)?;
    roles.refuse_leftovers()?;
    Ok(weights)
}

/// Names that only Hugging Face's own layout has; without this they would be reported as some missing tensor.
fn refuse_hugging_face_layout(checkpoint: &Checkpoint) -> Result<(), ModelError> {
    let telling = |name: &str| {
        let of_experts = name.contains(".mlp.experts.") || name.ends_with(".weight_scale_inv");
        (of_experts && !is_skipped(name)) || name.starts_with("model.language_model.")
    };
    match checkpoint.tensors.iter().find(|info| telling(&info.name)) {
        None => Ok(()),
        Some(info) => Err(ModelError::NotMlx {
            file: checkpoint.files[info.file].label.clone(),
            found: format!("it holds tensor {}, a name of Hugging Face's own layout", quoted(&info.name)),
        }),
    }
}

/// Whether a tensor of this name is left alone.
pub(crate) fn is_skipped(name: &str) -> bool {
    let name = name.strip_prefix(PREFIX).unwrap_or(name);
    name.starts_with(PADDING) || SKIPPED.iter().any(|part| name.starts_with(part))
}

struct Roles<'a> {
    config_file: &'a str,
    checkpoint: &'a Checkpoint,
    quantization: &'a Quantization,
    /// Names without the prefix. Tensors that have their role are taken out.
    open: HashMap<&'a str, TensorId>,
}

/// A stack of `experts` matrices (`None`: one matrix, without that dimension), `rows` outputs, `cols` inputs.
#[derive(Clone, Copy)]
struct MatrixShape {
    experts: Option<usize>,
    rows: usize,
    cols: usize,
}

impl MatrixShape {
    fn one(rows: usize, cols: usize) -> Self {
        MatrixShape { experts: None, rows, cols }
    }

    fn stored(self, width: usize) -> Vec<usize> {
        self.experts.into_iter().chain([self.rows, width]).collect()
    }
}

impl<'a> Roles<'a> {
    fn new(
        config_file: &'a str,
        checkpoint: &'a Checkpoint,
        quantization: &'a Quantization,
    ) -> Result<Self, ModelError> {
        let mut open = HashMap::new();
        for (id, info) in checkpoint.tensors().filter(|(_, info)| !is_skipped(&info.name)) {
            let name = info.name.strip_prefix(PREFIX).unwrap_or(&info.name);
            if let Some(first) = open.insert(name, id) {
                let file = |id: TensorId| checkpoint.files[checkpoint.info(id).file].label.clone();
                return Err(ModelError::DuplicateTensor {
                    tensor: quoted(name),
                    file: file(id),
                    other: format!("{}, with the prefix {PREFIX} once", file(first)),
                });
            }
        }
        Ok(Roles { config_file, checkpoint, quantization, open })
    }

    fn model(&mut self, sizes: &Geometry, tied: bool) -> Result<Weights, ModelError> {
        let vocabulary = MatrixShape::one(sizes.vocab, sizes.hidden);
        let embed = self.matrix("model.embed_tokens", vocabulary)?;
        let lm_head = if tied { embed.clone() } else { self.matrix("lm_head", vocabulary)? };
        let final_norm = self.plain("model.norm.weight", &[sizes.hidden])?;
        let layers = sizes
            .layers
            .iter()
            .enumerate()
            .map(|(i, kind)| self.layer(sizes, *kind, &format!("model.layers.{i}.")))
            .collect::<Result<_, _>>()?;
        Ok(Weights { embed, lm_head, final_norm, layers })
    }

    fn layer(&mut self, sizes: &Geometry, kind: LayerKind, path: &str) -> Result<LayerWeights, ModelError> {
        Ok(LayerWeights {
            input_norm: self.plain(&format!("{path}input_layernorm.weight"), &[sizes.hidden])?,
            post_norm: self.plain(&format!("{path}post_attention_layernorm.weight"), &[sizes.hidden])?,
            mixer: match kind {
                LayerKind::Delta => MixerWeights::Delta(self.delta(sizes, &format!("{path}linear_attn."))?),
                LayerKind::Attention => {
                    MixerWeights::Attention(self.attention(sizes, &format!("{path}self_attn."))?)
                }
            },
            moe: self.moe(sizes, &format!("{path}mlp."))?,
        })
    }

    fn delta(&mut self, sizes: &Geometry, path: &str) -> Result<DeltaWeights, ModelError> {
        let (delta, hidden) = (&sizes.delta, sizes.hidden);
        let (channels, width, heads) = (delta.channels(), delta.value_width(), delta.value_heads);
        Ok(DeltaWeights {
            qkv: self.matrix(&format!("{path}in_proj_qkv"), MatrixShape::one(channels, hidden))?,
            z: self.matrix(&format!("{path}in_proj_z"), MatrixShape::one(width, hidden))?,
            a: self.matrix(&format!("{path}in_proj_a"), MatrixShape::one(heads, hidden))?,
            b: self.matrix(&format!("{path}in_proj_b"), MatrixShape::one(heads, hidden))?,
            conv: self.plain(&format!("{path}conv1d.weight"), &[channels, delta.conv_taps, 1])?,
            a_log: self.plain(&format!("{path}A_log"), &[heads])?,
            dt_bias: self.plain(&format!("{path}dt_bias"), &[heads])?,
            norm: self.plain(&format!("{path}norm.weight"), &[delta.value_dim])?,
            out: self.matrix(&format!("{path}out_proj"), MatrixShape::one(hidden, width))?,
            in_proj: None,
        })
    }

    fn attention(&mut self, sizes: &Geometry, path: &str) -> Result<AttentionWeights, ModelError> {
        let (attention, hidden) = (&sizes.attention, sizes.hidden);
        let width = attention.query_heads * attention.head_dim;
        let kv_width = attention.kv_heads * attention.head_dim;
        Ok(AttentionWeights {
            q: self.matrix(&format!("{path}q_proj"), MatrixShape::one(2 * width, hidden))?,
            k: self.matrix(&format!("{path}k_proj"), MatrixShape::one(kv_width, hidden))?,
            v: self.matrix(&format!("{path}v_proj"), MatrixShape::one(kv_width, hidden))?,
            o: self.matrix(&format!("{path}o_proj"), MatrixShape::one(hidden, width))?,
            qkv: None,
            q_norm: self.plain(&format!("{path}q_norm.weight"), &[attention.head_dim])?,
            k_norm: self.plain(&format!("{path}k_norm.weight"), &[attention.head_dim])?,
        })
    }

    fn moe(&mut self, sizes: &Geometry, path: &str) -> Result<MoeWeights, ModelError> {
        let (moe, hidden) = (&sizes.moe, sizes.hidden);
        let (experts, width, shared) = (Some(moe.experts), moe.expert_width, moe.shared_width);
        let stack = |rows, cols| MatrixShape { experts, rows, cols };
        let one = MatrixShape::one;
        Ok(MoeWeights {
            router: self.matrix(&format!("{path}gate"), one(moe.experts, hidden))?,
            gate: self.matrix(&format!("{path}switch_mlp.gate_proj"), stack(width, hidden))?,
            up: self.matrix(&format!("{path}switch_mlp.up_proj"), stack(width, hidden))?,
            down: self.matrix(&format!("{path}switch_mlp.down_proj"), stack(hidden, width))?,
            shared_gate_proj: self.matrix(&format!("{path}shared_expert.gate_proj"), one(shared, hidden))?,
            shared_up: self.matrix(&format!("{path}shared_expert.up_proj"), one(shared, hidden))?,
            shared_down: self.matrix(&format!("{path}shared_expert.down_proj"), one(hidden, shared))?,
            shared_gate: self.matrix(&format!("{path}shared_expert_gate"), one(1, hidden))?,
            router_and_gate: None,
        })
    }

    /// The three tensors of a quantized matrix.
    fn matrix(&mut self, path: &str, shape: MatrixShape) -> Result<QuantizedMatrix, ModelError> {
        let format = self.quantization.format_of(path)?;
        let (bits, group) = (format.bits, format.group);
        let MatrixShape { experts, rows, cols } = shape;
        if !cols.is_multiple_of(group) {
            return Err(ModelError::Group {
                file: self.config_file.to_owned(),
                tensor: path.to_owned(),
                found: cols,
                group,
            });
        }
        let because = format!("{cols} inputs at {bits} bits in groups of {group}, as config.json says");
        // Groups are multiples of 32 inputs, so a row is always whole 32-bit words.
        let packed = shape.stored(cols * bits / 32);
        let per_group = shape.stored(cols / group);
        Ok(QuantizedMatrix {
            weight: self.take(&format!("{path}.weight"), &[ElementType::U32], &packed, &because)?.0,
            scales: self.take(&format!("{path}.scales"), &[ElementType::BF16], &per_group, &because)?.0,
            biases: self.take(&format!("{path}.biases"), &[ElementType::BF16], &per_group, &because)?.0,
            experts: experts.unwrap_or(1),
            rows,
            cols,
            bits,
            group,
        })
    }

    /// A tensor that is not quantized.
    fn plain(&mut self, name: &str, shape: &[usize]) -> Result<PlainTensor, ModelError> {
        let types = [ElementType::BF16, ElementType::F32];
        let (tensor, element) = self.take(name, &types, shape, "the sizes in config.json")?;
        Ok(PlainTensor { tensor, is_f32: element == ElementType::F32, len: shape.iter().product() })
    }

    /// A name with the prefix that this checkpoint's other tensors have.
    fn as_in_the_file(&self, name: &str) -> String {
        let prefixed = self.checkpoint.tensors.iter().any(|tensor| tensor.name.starts_with(PREFIX));
        if prefixed { format!("{PREFIX}{name}") } else { name.to_owned() }
    }

    /// Takes a tensor out of the open ones, if it is what it should be.
    fn take(
        &mut self,
        name: &str,
        types: &[ElementType],
        shape: &[usize],
        because: &str,
    ) -> Result<(TensorId, ElementType), ModelError> {
        let wanted_type = || types.iter().map(|t| t.name()).collect::<Vec<_>>().join(" or ");
        let Some(id) = self.open.remove(name) else {
            return Err(ModelError::MissingTensor {
                file: self.checkpoint.listing.clone(),
                tensor: self.as_in_the_file(name),
                wanted: format!("{} {shape:?}", wanted_type()),
            });
        };
        let info = self.checkpoint.info(id);
        let file = || self.checkpoint.files[info.file].label.clone();
        if !types.contains(&info.element) {
            return Err(ModelError::TensorType {
                file: file(),
                tensor: info.name.clone(),
                found: info.element.name().to_owned(),
                wanted: wanted_type(),
            });
        }
        if info.shape != shape {
            return Err(ModelError::Shape {
                file: file(),
                tensor: info.name.clone(),
                found: info.shape.clone(),
                wanted: shape.to_vec(),
                because: because.to_owned(),
            });
        }
        Ok((id, info.element))
    }

    fn refuse_leftovers(&self) -> Result<(), ModelError> {
        let Some(first) =
            self.open.values().map(|id| self.checkpoint.info(*id)).min_by_key(|info| &info.name)
        else {
            return Ok(());
        };
        Err(ModelError::UnexpectedTensor {
            file: self.checkpoint.files[first.file].label.clone(),
            tensor: quoted(&first.name),
            more: self.open.len() - 1,
        })
    }
}
