//! Messages in, text deltas out: template, tokens, engine, detokenizer, stop texts. Sees text, never tensors.
