//! Sizes, durations and rates as text.
