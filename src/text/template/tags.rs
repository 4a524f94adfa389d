//! `{% generation %}`: marks what the assistant says, for training. Means a block of its own and nothing else here.

/// `source` with `generation` and `endgeneration` tags turned into an empty `with` block, which has the same scope.
pub(super) fn without_generation_tags(source: &str) -> String {
    if !source.contains("generation") {
        return source.to_string();
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let len = match rest.as_bytes().get(1) {
            Some(b'#') => rest.find("#}").map_or(rest.len(), |end| end + 2),
            Some(b'{') => code_len(rest, "}}"),
            Some(b'%') => code_len(rest, "%}"),
            _ => 1,
        };
        let (piece, after) = rest.split_at(len);
        out.push_str(&translated(piece));
        rest = after;
        if is_tag(piece, "raw") {
            let end = rest.find("endraw").unwrap_or(rest.len());
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    out
}

/// Length of the tag or expression that `code` starts with; its end inside a string does not count.
fn code_len(code: &str, end: &str) -> usize {
    let bytes = code.as_bytes();
    let (mut at, mut quote) = (2, None);
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if code.as_bytes()[at..].starts_with(end.as_bytes()) => {
                return at + end.len();
            }
            _ => {}
        }
        at += 1;
    }
    code.len()
}

fn tag_body(piece: &str) -> Option<&str> {
    let body = piece.strip_prefix("{%")?.strip_suffix("%}")?;
    let body = body.strip_prefix(['-', '+']).unwrap_or(body);
    Some(body.strip_suffix(['-', '+']).unwrap_or(body).trim())
}

fn is_tag(piece: &str, name: &str) -> bool {
    tag_body(piece) == Some(name)
}

fn translated(piece: &str) -> String {
    if is_tag(piece, "generation") {
        piece.replace("generation", "with")
    } else if is_tag(piece, "endgeneration") {
        piece.replace("endgeneration", "endwith")
    } else {
        piece.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tags_are_translated() {
        let source = "{%- generation -%}a{% endgeneration %}{{ '{% generation %}' }}{# {% generation %} #}{ \
                      {% raw %}{% generation %}{% endraw %}{% set generation = 1 %}";
        let expected = "{%- with -%}a{% endwith %}{{ '{% generation %}' }}{# {% generation %} #}{ \
                        {% raw %}{% generation %}{% endraw %}{% set generation = 1 %}";
        assert_eq!(without_generation_tags(source), expected);
    }
}
