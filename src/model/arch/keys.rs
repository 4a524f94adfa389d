//! One row per config field: its names in `config.json` and in GGUF metadata.
//!
//! A GGUF key is the part behind `general.architecture` and a dot. A field that a container cannot hold has no name there.
//! Defaults stand in the architecture's row ([`super::table::Architecture::defaults`]).

/// A field's names.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Keys of `config.json`, tried in order.
    pub hf: &'static [&'static str],
    /// Key of GGUF metadata, without the architecture's name.
    pub gguf: Option<&'static str>,
}

macro_rules! keys {
    ($($(#[$doc:meta])* $name:ident = [$($hf:literal),+], $gguf:expr;)*) => {
        $($(#[$doc])* pub const $name: Key = Key { hf: &[$($hf),+], gguf: $gguf };)*

        /// Every field.
        pub const KEYS: &[Key] = &[$($name),*];
    };
}

keys! {
    /// Rows of the embedding table (GGUF: the tensor says).
    VOCAB_SIZE = ["vocab_size"], None;
    /// Width of the residual stream.
    HIDDEN_SIZE = ["hidden_size"], Some("embedding_length");
    /// Layers.
    NUM_LAYERS = ["num_hidden_layers"], Some("block_count");
    /// Query heads.
    NUM_HEADS = ["num_attention_heads"], Some("attention.head_count");
    /// Key/value heads.
    NUM_KV_HEADS = ["num_key_value_heads"], Some("attention.head_count_kv");
    /// Elements of a head.
    HEAD_DIM = ["head_dim"], Some("attention.key_length");
    /// Elements of a head in sliding layers, where full ones differ.
    SLIDING_HEAD_DIM = ["head_dim"], Some("attention.key_length_swa");
    /// Elements of a head in full layers, where they differ.
    FULL_HEAD_DIM = ["global_head_dim"], Some("attention.key_length");
    /// Key/value heads of full layers whose values are their keys (in GGUF the list of heads has them).
    FULL_KV_HEADS = ["num_global_key_value_heads"], None;
    /// Layers at the end that read keys and values of layers before them.
    SHARED_KV_LAYERS = ["num_kv_shared_layers"], Some("attention.shared_kv_layers");
    /// Elements of a value, where it may differ.
    VALUE_DIM = ["v_head_dim"], Some("attention.value_length");
    /// Elements of the latent that queries are made of.
    QUERY_RANK = ["q_lora_rank"], Some("attention.q_lora_rank");
    /// Elements of the latent that keys and values are made of.
    KV_RANK = ["kv_lora_rank"], Some("attention.kv_lora_rank");
    /// Elements of a key that are not rotated, beside those that are.
    NOPE_DIM = ["qk_nope_head_dim"], None;
    /// Elements of a key that are rotated, beside those that are not.
    ROPE_DIM = ["qk_rope_head_dim"], Some("rope.dimension_count");
    /// Elements of a query of latent attention (`config.json` has its parts).
    MLA_KEY_DIM = ["qk_head_dim"], Some("attention.key_length_mla");
    /// Elements of a value of latent attention.
    MLA_VALUE_DIM = ["v_head_dim"], Some("attention.value_length_mla");
    /// The same in sliding layers, where full ones differ.
    SLIDING_VALUE_DIM = ["v_head_dim"], Some("attention.value_length_swa");
    /// Width of the feed-forward block.
    INTERMEDIATE_SIZE = ["intermediate_size"], Some("feed_forward_length");
    /// Longest context that the model was made for.
    MAX_CONTEXT = ["max_position_embeddings"], Some("context_length");
    /// Added to the mean square under the root.
    RMS_NORM_EPS = ["rms_norm_eps"], Some("attention.layer_norm_rms_epsilon");
    /// The same by LFM2's name.
    NORM_EPS = ["norm_eps"], Some("attention.layer_norm_rms_epsilon");
    /// The same for layer norms.
    LAYER_NORM_EPS = ["layer_norm_eps"], Some("attention.layer_norm_epsilon");
    /// Base of the rotary frequencies.
    ROPE_THETA = ["rope_theta"], Some("rope.freq_base");
    /// The base in sliding layers, where it differs.
    ROPE_LOCAL_THETA = ["rope_local_base_freq"], Some("rope.freq_base_swa");
    /// Rotated elements of a head.
    ROTARY_DIM = ["rotary_dim"], Some("rope.dimension_count");
    /// The same in sliding layers, where full ones differ.
    SLIDING_ROTARY_DIM = ["rotary_dim"], Some("rope.dimension_count_swa");
    /// The same as a share of the head.
    PARTIAL_ROTARY = ["partial_rotary_factor"], None;
    /// Context before it was stretched.
    ORIGINAL_CONTEXT = ["original_max_position_embeddings"], Some("rope.scaling.original_context_length");
    /// Every n-th layer does not rotate.
    NO_ROPE_INTERVAL = ["no_rope_layer_interval"], None;
    /// How fast queries grow with their position (in `rope_parameters` of a `config.json`).
    QUERY_SCALING = ["llama_4_scaling_beta"], Some("attention.temperature_scale");
    /// Multiplies embeddings.
    EMBEDDING_MULTIPLIER = ["embedding_multiplier"], Some("embedding_scale");
    /// Multiplies attention scores.
    ATTENTION_MULTIPLIER = ["attention_multiplier"], Some("attention.scale");
    /// Multiplies what is added to the residual stream.
    RESIDUAL_MULTIPLIER = ["residual_multiplier"], Some("residual_scale");
    /// Divides logits.
    LOGITS_DIVISOR = ["logits_scaling"], Some("logit_scale");
    /// Multiplies logits.
    LOGITS_MULTIPLIER = ["logit_scale"], Some("logit_scale");
    /// Layers behind the last that predict further tokens.
    NUM_PREDICT_LAYERS = ["num_nextn_predict_layers", "num_mtp_layers"], Some("nextn_predict_layers");
    /// Every n-th layer has attention, the others have the gated delta rule.
    FULL_ATTENTION_INTERVAL = ["full_attention_interval"], Some("full_attention_interval");
    /// Heads of keys of the delta rule.
    LINEAR_KEY_HEADS = ["linear_num_key_heads"], Some("ssm.group_count");
    /// Heads of values of the delta rule.
    LINEAR_VALUE_HEADS = ["linear_num_value_heads"], Some("ssm.time_step_rank");
    /// Elements of a key of the delta rule.
    LINEAR_KEY_DIM = ["linear_key_head_dim"], Some("ssm.state_size");
    /// Elements of a value of the delta rule.
    LINEAR_VALUE_DIM = ["linear_value_head_dim"], None;
    /// Elements of all values of a token (`config.json` has them per head).
    SSM_INNER_SIZE = ["ssm.inner_size"], Some("ssm.inner_size");
    /// Inputs that the delta rule's convolution sees.
    LINEAR_CONV_KERNEL = ["linear_conv_kernel_dim"], Some("ssm.conv_kernel");
    /// Inputs that the gated short convolution sees.
    SHORT_CONV_KERNEL = ["conv_L_cache"], Some("shortconv.l_cache");
    /// Older name of the width of the feed-forward block, which wins.
    BLOCK_FF_DIM = ["block_ff_dim"], None;
    /// Multiplies the adjusted width of the feed-forward block.
    FFN_MULTIPLIER = ["block_ffn_dim_multiplier"], None;
    /// The adjusted width is a multiple of this.
    FFN_MULTIPLE_OF = ["block_multiple_of"], None;
    /// Window of sliding layers.
    SLIDING_WINDOW = ["sliding_window"], Some("attention.sliding_window");
    /// Every n-th layer is not sliding.
    SLIDING_PATTERN = ["sliding_window_pattern", "_sliding_window_pattern"], Some("attention.sliding_window_pattern");
    /// Layers below this number do not slide.
    MAX_WINDOW_LAYERS = ["max_window_layers"], None;
    /// Attention scale is this to the power of -1/2.
    QUERY_PRE_ATTN_SCALAR = ["query_pre_attn_scalar"], Some("attention.query_pre_attn_scalar");
    /// Soft cap on attention scores.
    ATTN_SOFT_CAP = ["attn_logit_softcapping"], Some("attn_logit_softcapping");
    /// Experts of a layer.
    NUM_EXPERTS = ["num_experts", "num_local_experts", "n_routed_experts"], Some("expert_count");
    /// Experts that a token uses.
    EXPERTS_PER_TOKEN = ["num_experts_per_tok", "experts_per_token", "top_k_experts"], Some("expert_used_count");
    /// Width of an expert; that of the feed-forward block where it is left out.
    EXPERT_SIZE = ["moe_intermediate_size"], Some("expert_feed_forward_length");
    /// Width of the expert that every token uses.
    SHARED_SIZE = ["shared_expert_intermediate_size", "shared_intermediate_size"], Some("expert_shared_feed_forward_length");
    /// The same in widths of an expert.
    NUM_SHARED = ["n_shared_experts"], Some("expert_shared_count");
    /// Multiplies the weights of experts.
    ROUTED_SCALE = ["routed_scaling_factor"], Some("expert_weights_scale");
    /// Groups of experts.
    EXPERT_GROUPS = ["n_group"], Some("expert_group_count");
    /// Groups that the experts of a token come from.
    KEPT_GROUPS = ["topk_group"], Some("expert_group_used_count");
    /// Layers at the beginning without experts (in GGUF the tensors say it).
    FIRST_DENSE = ["first_k_dense_replace"], None;
    /// Every n-th layer, counted from 1, has experts.
    SPARSE_STEP = ["decoder_sparse_step"], None;
    /// Every n-th layer, counted from 0, has experts.
    SPARSE_FREQUENCY = ["moe_layer_freq"], None;
    /// Limit of the gate and of up in experts of GPT-OSS.
    SWIGLU_LIMIT = ["swiglu_limit"], None;
    /// Inside the sigmoid of these experts.
    SWIGLU_ALPHA = ["swiglu_alpha"], None;
    /// Queries, keys and values are clamped to ± this.
    QKV_CLIP = ["clip_qkv"], Some("attention.clamp_kqv");
    /// Features of the inputs that layers have besides the residual stream.
    PER_LAYER_SIZE = ["hidden_size_per_layer_input"], Some("embedding_length_per_layer_input");
    /// Rows of their embedding table (GGUF: the tensor says).
    PER_LAYER_VOCAB_SIZE = ["vocab_size_per_layer_input"], None;
    /// Soft cap on logits.
    FINAL_SOFT_CAP = ["final_logit_softcapping"], Some("final_logit_softcapping");
}
