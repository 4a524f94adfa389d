//! Sizes, durations, rates and dates as people read them.

use std::time::Duration;

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// `x.xx GB`, `x.x MB`, `x KB` or `x B`, where a GB is 1024³ bytes.
///
/// ```
/// assert_eq!(oxydllm::units::format_size(2_501_000_000), "2.33 GB");
/// assert_eq!(oxydllm::units::format_size(98_000_000), "93.5 MB");
/// ```
pub fn format_size(bytes: u64) -> String {
    match bytes {
        GIB.. => format!("{:.2} GB", bytes as f64 / GIB as f64),
        MIB.. => format!("{:.1} MB", bytes as f64 / MIB as f64),
        KIB.. => format!("{:.0} KB", bytes as f64 / KIB as f64),
        _ => format!("{bytes} B"),
    }
}

/// Bytes per second, as [`format_size`] with `/s`.
pub fn format_rate(bytes: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64();
    if seconds <= 0.0 {
        return "-".to_owned();
    }
    format!("{}/s", format_size((bytes as f64 / seconds) as u64))
}

/// `850 ms`, `12.3 s`, `4 min 05 s` or `2 h 03 min`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..=59 => format!("{:.1} s", duration.as_secs_f64()),
        60..=3599 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// The UTC date of a Unix time as `YYYYMMDD`.
pub fn format_date(unix_seconds: u64) -> String {
    let mut days = unix_seconds / 86_400;
    let mut year = 1970;
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year:04}{month:02}{:02}", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_change_unit_at_powers_of_1024() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KB"),
            (MIB - 1, "1024 KB"),
            (MIB, "1.0 MB"),
            (GIB, "1.00 GB"),
            (GIB * 1500, "1500.00 GB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn dates_know_leap_years() {
        let cases = [
            (0, "19700101"),
            (951_782_400, "20000229"),
            (1_709_164_800, "20240229"),
            (1_735_689_599, "20241231"),
            (1_735_689_600, "20250101"),
            (4_107_542_400, "21000301"),
        ];
        for (seconds, text) in cases {
            assert_eq!(format_date(seconds), text);
        }
    }

    #[test]
    fn durations_read_well_at_every_scale() {
        let cases = [
            (0.85, "850 ms"),
            (12.34, "12.3 s"),
            (245.0, "4 min 05 s"),
            (7400.0, "2 h 03 min"),
        ];
        for (seconds, text) in cases {
            assert_eq!(format_duration(Duration::from_secs_f64(seconds)), text);
        }
    }
}
