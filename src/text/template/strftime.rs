//! `strftime_now`: the date in UTC, in Python's notation. UTC, so that a prompt does not depend on where it was rendered.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
/// A longer format has no place in a prompt.
const MAX_FORMAT_BYTES: usize = 128;

/// `now` as `format` asks. An unknown letter stays as it is, as in the C library that Python calls.
pub(super) fn format_utc(now: SystemTime, format: &str) -> Result<String, String> {
    if format.len() > MAX_FORMAT_BYTES {
        return Err(format!(
            "the format of strftime_now is over {MAX_FORMAT_BYTES} bytes"
        ));
    }
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs()) as i64;
    let time = Time::of(seconds);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let letter = chars.next();
        let unpadded = letter == Some('-');
        let Some(letter) = (if unpadded { chars.next() } else { letter }) else {
            out.push('%');
            break;
        };
        time.write(&mut out, letter, unpadded);
    }
    Ok(out)
}

struct Time {
    year: i64,
    month: usize,
    day: i64,
    day_of_year: i64,
    weekday: usize,
    second_of_day: i64,
}

impl Time {
    fn of(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400);
        let (year, month, day) = civil_date(days);
        let first_day = days_before_year(year);
        Self {
            year,
            month,
            day,
            day_of_year: days - first_day + 1,
            weekday: (days + 3).rem_euclid(7) as usize,
            second_of_day: seconds.rem_euclid(86_400),
        }
    }

    fn write(&self, out: &mut String, letter: char, unpadded: bool) {
        let (hour, minute, second) = (
            self.second_of_day / 3600,
            self.second_of_day / 60 % 60,
            self.second_of_day % 60,
        );
        let hour12 = (hour + 11) % 12 + 1;
        let mut number = |value: i64, width: usize| {
            let width = if unpadded { 1 } else { width };
            let _ = write!(out, "{value:0width$}");
        };
        match letter {
            'Y' => number(self.year, 4),
            'y' => number(self.year % 100, 2),
            'm' => number(self.month as i64, 2),
            'd' => number(self.day, 2),
            'H' => number(hour, 2),
            'I' => number(hour12, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'j' => number(self.day_of_year, 3),
            'f' => out.push_str("000000"),
            'e' => _ = write!(out, "{:>2}", self.day),
            'B' => out.push_str(MONTHS[self.month - 1]),
            'b' | 'h' => out.push_str(&MONTHS[self.month - 1][..3]),
            'A' => out.push_str(DAYS[self.weekday]),
            'a' => out.push_str(&DAYS[self.weekday][..3]),
            'u' => _ = write!(out, "{}", self.weekday + 1),
            'w' => _ = write!(out, "{}", (self.weekday + 1) % 7),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'Z' => out.push_str("UTC"),
            'z' => out.push_str("+0000"),
            'F' => _ = write!(out, "{:04}-{:02}-{:02}", self.year, self.month, self.day),
            'D' | 'x' => {
                _ = write!(
                    out,
                    "{:02}/{:02}/{:02}",
                    self.month,
                    self.day,
                    self.year % 100
                )
            }
            'T' | 'X' => _ = write!(out, "{hour:02}:{minute:02}:{second:02}"),
            'R' => _ = write!(out, "{hour:02}:{minute:02}"),
            'c' => {
                let (weekday, month) = (&DAYS[self.weekday][..3], &MONTHS[self.month - 1][..3]);
                let _ = write!(
                    out,
                    "{weekday} {month} {:>2} {hour:02}:{minute:02}:{second:02} {}",
                    self.day, self.year
                );
            }
            'n' => out.push('\n'),
            't' => out.push('\t'),
            '%' => out.push('%'),
            other => out.extend(['%', other]),
        }
    }
}

fn days_before_year(year: i64) -> i64 {
    let before = year - 1;
    before * 365 + before / 4 - before / 100 + before / 400 - 719_162
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Year, month and day of the Gregorian calendar, from days since 1970.
fn civil_date(days: i64) -> (i64, usize, i64) {
    let mut year = 1970 + days / 366;
    while days_before_year(year + 1) <= days {
        year += 1;
    }
    let mut day = days - days_before_year(year);
    let february = if is_leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let cases = [
            (0, "1970-01-01 Thu 001"),
            (951_782_400, "2000-02-29 Tue 060"),
            (1_704_067_199, "2023-12-31 Sun 365"),
            (1_735_603_200, "2024-12-31 Tue 366"),
            (4_107_542_400, "2100-03-01 Mon 060"),
        ];
        for (seconds, expected) in cases {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(format_utc(time, "%Y-%m-%d %a %j").unwrap(), expected);
        }
    }

    #[test]
    fn letters_follow_python() {
        let time = UNIX_EPOCH + Duration::from_secs(1_717_427_105);
        let text = format_utc(time, "%d %b %Y|%B %-d|%A|%I:%M %p|%H:%M:%S|%y|%%|%Q|%-j").unwrap();
        assert_eq!(
            text,
            "03 Jun 2024|June 3|Monday|03:05 PM|15:05:05|24|%|%Q|155"
        );
        assert!(format_utc(time, &"x".repeat(200)).is_err());
    }
}
