//! Strings: tokenizers, streaming detokenizer, chat templates, stop texts. Knows nothing of tensors.
