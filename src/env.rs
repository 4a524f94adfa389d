//! Every environment variable that this program reads: name, meaning, parser. Nothing else calls `std::env::var`.
