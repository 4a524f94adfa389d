//! Local models: layout on disk, names and resolution, registry file, list, add, remove.
