//! The version text.

use crate::units::format_date;

/// `<semver>+YYYYMMDD`, the date being the UTC day of the build; without the date when that is not known.
pub fn text() -> String {
    format_version(env!("CARGO_PKG_VERSION"), option_env!("OXYDLLM_BUILD_TS"))
}

fn format_version(semver: &str, build_timestamp: Option<&str>) -> String {
    match build_timestamp.and_then(|text| text.parse::<u64>().ok()) {
        None | Some(0) => semver.to_owned(),
        Some(seconds) => format!("{semver}+{}", format_date(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_date_is_appended_only_when_known() {
        assert_eq!(
            format_version("1.2.3", Some("1735689600")),
            "1.2.3+20250101"
        );
        assert_eq!(format_version("1.2.3", Some("0")), "1.2.3");
        assert_eq!(format_version("1.2.3", Some("")), "1.2.3");
        assert_eq!(format_version("1.2.3", None), "1.2.3");
    }
}
