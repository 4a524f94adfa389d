//! Templates for models that bring none, chosen by the control tokens they have.

use super::ChatTemplate;
use crate::error::Result;
use crate::text::Tokenizer;

/// Token that gives a format away, and its template.
const FORMATS: &[(&str, &str)] = &[
    (
        "<|im_start|>",
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\
         {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    ),
    (
        "<|start_header_id|>",
        "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + \
         message.content + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}\
         {{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    ),
    ("<|turn>", TURNS_WITH_PIPES),
    ("<start_of_turn>", TURNS),
    ("[INST]", INSTRUCTIONS),
];

const TURNS_WITH_PIPES: &str = "{{ bos_token }}{% for message in messages %}{{ '<|turn>' + \
     ('model' if message.role == 'assistant' else message.role) + '\n' + message.content | trim + '<turn|>\n' }}\
     {% endfor %}{% if add_generation_prompt %}{{ '<|turn>model\n' }}{% endif %}";
const TURNS: &str = "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}\
     {{ raise_exception('System role not supported') }}{% endif %}{{ '<start_of_turn>' + \
     ('model' if message.role == 'assistant' else message.role) + '\n' + message.content | trim + '<end_of_turn>\n' }}\
     {% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";
/// One space after each tag, none before.
const INSTRUCTIONS: &str = "{{ bos_token }}{% for message in messages %}{% if message.role == 'system' %}\
     {% if has_system_prompt %}{{ '[SYSTEM_PROMPT] ' + message.content + '[/SYSTEM_PROMPT]' }}{% else %}\
     {{ raise_exception('System role not supported') }}{% endif %}{% elif message.role == 'assistant' %}\
     {{ ' ' + message.content + eos_token }}{% else %}{{ '[INST] ' + message.content + '[/INST]' }}{% endif %}\
     {% endfor %}";
const LINES: &str = "{% for message in messages %}{{ message.role | capitalize + ': ' + message.content + '\n' }}\
     {% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}";

impl ChatTemplate {
    /// A template for a model without one, by the control tokens its tokenizer has; plain `User:` and `Assistant:` lines when
    /// none is known, with a warning: such a model may never have learned to chat.
    ///
    /// # Errors
    /// None that a user could cause.
    pub fn for_tokenizer(tokenizer: &Tokenizer) -> Result<Self> {
        let has = |text: &str| {
            tokenizer
                .find_id(text)
                .is_some_and(|id| tokenizer.is_special(id))
        };
        let known = FORMATS.iter().find(|(token, _)| has(token));
        let source = match known {
            Some((token, source)) => {
                tracing::warn!(
                    "the model has no chat template; the format of models with `{token}` is used"
                );
                source
            }
            None => {
                tracing::warn!(
                    "the model has no chat template and no known control tokens; plain lines are used"
                );
                LINES
            }
        };
        let has_system_prompt = if has("[SYSTEM_PROMPT]") {
            "true"
        } else {
            "false"
        };
        Self::new(source.replace("has_system_prompt", has_system_prompt))
    }
}
