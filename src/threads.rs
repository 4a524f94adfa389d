//! The process's compute pool.
