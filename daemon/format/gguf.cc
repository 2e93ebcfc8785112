// Opening a model: one file or the parts of a split one, put together under one index of keys and tensors.
#include "daemon/format/gguf.h"

#include <algorithm>

#include "daemon/format/gguf_parser.h"
#include "daemon/format/model_name.h"

namespace ellm::format {
namespace {

/// Names in order, for binary search: unlike a hash table, its cost cannot be driven up by a file made for it.
using Index = std::vector<std::pair<std::string_view, size_t>>;

/// Sorts; returns the first name that stands twice, or an empty view.
std::string_view sort_index(Index& index) {
  std::sort(index.begin(), index.end());
  for (size_t i = 1; i < index.size(); i++)
    if (index[i].first == index[i - 1].first) return index[i].first;
  return {};
}

const size_t* find_in(const Index& index, std::string_view name) {
  const auto at = std::lower_bound(index.begin(), index.end(), name,
                                   [](const auto& entry, std::string_view wanted) { return entry.first < wanted; });
  return at != index.end() && at->first == name ? &at->second : nullptr;
}

struct Split {
  uint64_t number = 0, count = 1, tensors = 0;  // tensors: of the whole model; 0 if unsaid
};

uint64_t split_value(const GgufPart& part, const char* key, uint64_t absent) {
  const Value* value = part.find(key);
  if (!value) return absent;
  const std::optional<uint64_t> number = unsigned_value(*value);
  if (!number)
    throw FormatError(part.file.path() + ": key '" + key + "': expected an unsigned integer, found " +
                      value_type_name(value->type));
  return *number;
}

Split read_split(const GgufPart& part) {
  Split split{split_value(part, "split.no", 0), split_value(part, "split.count", 1),
              split_value(part, "split.tensors.count", 0)};
  if (split.count == 0) split.count = 1;  // written so by tools for a model that is not split
  if (split.number >= split.count)
    throw FormatError(part.file.path() + ": key 'split.no': " + std::to_string(split.number) +
                      ", expected less than split.count, which is " + std::to_string(split.count));
  return split;
}

/// The path without part `number`'s suffix. Throws where it does not end in it.
std::string split_stem(const std::string& path, const Split& split) {
  const std::string suffix = part_file_name("", split.number + 1, split.count);
  if (path.size() < suffix.size() || !path.ends_with(suffix))
    throw FormatError(path + ": is part " + std::to_string(split.number + 1) + " of a model of " +
                      std::to_string(split.count) + " parts (split.no, split.count); expected a name that ends in '" +
                      suffix + "'");
  return path.substr(0, path.size() - suffix.size());
}

/// Says where a part does not stand where it belongs.
void check_place(const GgufPart& part, uint64_t number, uint64_t count) {
  const Split split = read_split(part);
  if (split.number == number && split.count == count) return;
  throw FormatError(part.file.path() + ": says that it is part " + std::to_string(split.number + 1) + " of " +
                    std::to_string(split.count) + " (split.no, split.count), expected " + std::to_string(number + 1) +
                    " of " + std::to_string(count));
}

void check_tensor_count(const std::vector<GgufPart>& parts) {
  const uint64_t stated = read_split(parts.front()).tensors;
  uint64_t tensors = 0;
  for (const GgufPart& part : parts) tensors += part.tensors.size();
  if (stated != 0 && stated != tensors)
    throw FormatError(parts.front().file.path() + ": key 'split.tensors.count': " + std::to_string(stated) +
                      ", the parts have " + std::to_string(tensors));
}

std::vector<GgufPart> open_parts(std::span<const OpenFile> files) {
  std::vector<GgufPart> parts;
  for (const OpenFile& file : files) {
    parts.push_back(parse_gguf(ModelFile(file.path, file.fd)));
    check_place(parts.back(), parts.size() - 1, files.size());
  }
  if (parts.size() > 1) check_tensor_count(parts);
  return parts;
}

std::vector<GgufPart> open_parts(const std::string& path) {
  std::vector<GgufPart> parts;
  parts.push_back(parse_gguf(ModelFile(path)));
  const Split split = read_split(parts.front());
  if (split.count == 1) return parts;
  const std::string stem = split_stem(path, split);
  if (split.number != 0)
    throw FormatError(path + ": is part " + std::to_string(split.number + 1) + " of " + std::to_string(split.count) +
                      " of a split model; open the first part, " + part_file_name(stem, 1, split.count));
  for (uint64_t i = 1; i < split.count; i++) {
    parts.push_back(parse_gguf(ModelFile(part_file_name(stem, i + 1, split.count))));
    check_place(parts.back(), i, split.count);
  }
  check_tensor_count(parts);
  return parts;
}

}  // namespace

struct Gguf::Impl {
  std::vector<GgufPart> parts;
  std::vector<Tensor> tensors;  // of all parts
  Index keys, tensor_names;
};

std::shared_ptr<const Gguf> Gguf::open(const std::string& path) {
  auto impl = std::make_shared<Impl>();
  impl->parts = open_parts(path);
  return make(std::move(impl));
}

std::shared_ptr<const Gguf> Gguf::open(std::span<const OpenFile> files) {
  auto impl = std::make_shared<Impl>();
  impl->parts = open_parts(files);
  return make(std::move(impl));
}

std::shared_ptr<const Gguf> Gguf::make(std::shared_ptr<Impl> impl) {
  const std::string& path = impl->parts.front().file.path();
  for (size_t i = 0; i < impl->parts.size(); i++) {
    for (Tensor& tensor : impl->parts[i].tensors) {
      tensor.part = static_cast<uint32_t>(i);
      impl->tensors.push_back(std::move(tensor));
    }
    impl->parts[i].tensors.clear();
  }
  const auto& values = impl->parts.front().values;
  for (size_t i = 0; i < values.size(); i++) impl->keys.emplace_back(values[i].first, i);
  for (size_t i = 0; i < impl->tensors.size(); i++) impl->tensor_names.emplace_back(impl->tensors[i].name, i);
  if (const std::string_view twice = sort_index(impl->keys); !twice.empty())
    throw FormatError(path + ": key " + quoted(twice) + " stands twice");
  if (const std::string_view twice = sort_index(impl->tensor_names); !twice.empty())
    throw FormatError(path + ": tensor " + quoted(twice) + " stands twice");
  return std::shared_ptr<const Gguf>(new Gguf(std::move(impl)));
}

Gguf::Gguf(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

const std::string& Gguf::path() const { return impl_->parts.front().file.path(); }
uint32_t Gguf::version() const { return impl_->parts.front().version; }
const std::vector<std::pair<std::string, Value>>& Gguf::values() const { return impl_->parts.front().values; }
const std::vector<Tensor>& Gguf::tensors() const { return impl_->tensors; }

uint64_t Gguf::file_bytes() const {
  uint64_t bytes = 0;
  for (const GgufPart& part : impl_->parts) bytes += part.file.size();
  return bytes;
}

std::vector<std::string> Gguf::part_paths() const {
  std::vector<std::string> paths;
  for (const GgufPart& part : impl_->parts) paths.push_back(part.file.path());
  return paths;
}

const Value* Gguf::find(std::string_view key) const {
  const size_t* at = find_in(impl_->keys, key);
  return at ? &values()[*at].second : nullptr;
}

const Tensor* Gguf::find_tensor(std::string_view name) const {
  const size_t* at = find_in(impl_->tensor_names, name);
  return at ? &impl_->tensors[*at] : nullptr;
}

void Gguf::read(const Tensor& tensor, uint64_t first, std::span<std::byte> to) const {
  if (first > tensor.data.size() || to.size() > tensor.data.size() - first)
    throw error("tensor " + quoted(tensor.name) + ": bytes " + std::to_string(first) + " to " +
                std::to_string(first + to.size()) + " of " + std::to_string(tensor.data.size()) + " were asked for");
  impl_->parts[tensor.part].file.read(tensor.offset + first, to);
}

void Gguf::check_unchanged() const {
  for (const GgufPart& part : impl_->parts) part.file.check_unchanged();
}

FormatError Gguf::error(const std::string& text) const { return FormatError(path() + ": " + text); }

}  // namespace ellm::format
