#!/usr/bin/env bash
# Writes the pages of docs/ that are made from tables in the code: docs/models.md.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --lib --quiet -- --ignored model::arch::page::tests::write_the_page
