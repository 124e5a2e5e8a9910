//! The sizes of a model. Everything that runs takes its sizes from here; nothing is special-cased by a model's name.

/// Every size of a Qwen3.6-architecture model (names as in `config.json`, `text_config`, in brackets).
#[derive(Clone, Debug, PartialEq)]
pub struct Geometry {
    /// Width of the residual stream (`hidden_size`).
    pub hidden: usize,
    /// The mixer of each layer, in order (`layer_types`).
    pub layers: Vec<LayerKind>,
    /// Rows of embedding and lm_head, padding included (`vocab_size`).
    pub vocab: usize,
    /// Epsilon of every RMSNorm (`rms_norm_eps`).
    pub rms_eps: f32,
    /// Sizes of the attention layers.
    pub attention: AttentionGeometry,
    /// Sizes of the Gated DeltaNet layers.
    pub delta: DeltaGeometry,
    /// Sizes of the mixture of experts.
    pub moe: MoeGeometry,
    /// The longest context the model was made for, in tokens (`max_position_embeddings`).
    pub max_context: usize,
}

/// What mixes tokens in a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Gated DeltaNet (`linear_attention`).
    Delta,
    /// Gated softmax attention over the whole context (`full_attention`).
    Attention,
}

/// Sizes of an attention layer.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionGeometry {
    /// (`num_attention_heads`); a multiple of `kv_heads`.
    pub query_heads: usize,
    /// (`num_key_value_heads`); query head h reads KV head h / (query_heads / kv_heads).
    pub kv_heads: usize,
    /// (`head_dim`).
    pub head_dim: usize,
    /// Leading dimensions of a head that RoPE turns (`head_dim * partial_rotary_factor`); even.
    pub rotary_dim: usize,
    /// Base of the rotary frequencies (`rope_theta`).
    pub rope_theta: f64,
}

/// Sizes of a Gated DeltaNet layer.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaGeometry {
    /// (`linear_num_key_heads`).
    pub key_heads: usize,
    /// (`linear_num_value_heads`), a multiple of `key_heads`; value head h uses key head h / (value_heads / key_heads).
    pub value_heads: usize,
    /// (`linear_key_head_dim`).
    pub key_dim: usize,
    /// (`linear_value_head_dim`).
    pub value_dim: usize,
    /// Taps of the causal depthwise convolution (`linear_conv_kernel_dim`).
    pub conv_taps: usize,
}

impl DeltaGeometry {
    /// Channels of the convolution: q, then k, then v.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Width of v, z and y.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// f32 values of one layer's state S, `[value_heads, value_dim, key_dim]`.
    pub fn state_len(&self) -> usize {
        self.value_heads * self.value_dim * self.key_dim
    }

    /// f32 values of one layer's conv state, `[conv_taps - 1, channels]`.
    pub fn conv_state_len(&self) -> usize {
        (self.conv_taps - 1) * self.channels()
    }
}

/// Sizes of the mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeGeometry {
    /// (`num_experts`).
    pub experts: usize,
    /// Experts that each token uses (`num_experts_per_tok`).
    pub top_k: usize,
    /// Width of an expert (`moe_intermediate_size`).
    pub expert_width: usize,
    /// Width of the shared expert (`shared_expert_intermediate_size`).
    pub shared_width: usize,
}

impl Geometry {
    /// Layers of one kind.
    pub fn count(&self, kind: LayerKind) -> usize {
        self.layers.iter().filter(|k| **k == kind).count()
    }

    /// Bytes of keys and values that one token adds to a session, at `element_bytes` a value (4 in exact mode).
    pub fn kv_bytes_per_token(&self, element_bytes: usize) -> usize {
        self.count(LayerKind::Attention)
            * 2
            * self.attention.kv_heads
            * self.attention.head_dim
            * element_bytes
    }

    /// Bytes of DeltaNet and conv state of a session, whatever its length (f32).
    pub fn recurrent_state_bytes(&self) -> usize {
        self.count(LayerKind::Delta) * 4 * (self.delta.state_len() + self.delta.conv_state_len())
    }
}
