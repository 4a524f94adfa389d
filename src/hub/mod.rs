//! Remote models: listing, variants, resumable verified download into `store`.
