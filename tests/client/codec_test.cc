// The codec against golden bytes, msgpack's own reader, random contents, and damage.
#include "client/codec.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <msgpack.hpp>
#include <optional>

#include "tests/client/allocation_count.h"
#include "tests/client/message_samples.h"

namespace ellm::client {
namespace {

std::string body_of(const Message& message) { return encode_frame(message).substr(4); }

const DecodeFailure& failure(const std::variant<Message, DecodeFailure>& result) {
  return std::get<DecodeFailure>(result);
}

bool same_message(const std::variant<Message, DecodeFailure>& decoded, const Message& expected) {
  return std::visit(
      [&]<class M>(const M& message) { return samples::same(message, std::get<M>(std::get<Message>(decoded))); },
      expected);
}

std::string pack(auto&&... values) {
  msgpack::sbuffer buffer;
  msgpack::packer packer(buffer);
  packer.pack_array(sizeof...(values));
  (packer.pack(values), ...);
  return {buffer.data(), buffer.size()};
}

// ---- golden bytes: tests/golden/protocol_v1/NAME.hex, and NAME.2.hex … where fields were appended since
// ------------------

std::string golden_path(const std::string& name, int edition) {
  return ELLM_GOLDEN_DIR "/" + name + (edition > 1 ? "." + std::to_string(edition) : "") + ".hex";
}

std::optional<std::string> read_hex(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string bytes, pair;
  while (file >> pair) bytes += static_cast<char>(std::stoi(pair, nullptr, 16));
  return bytes;
}

void write_hex(const std::string& path, const std::string& bytes) {
  std::ofstream file(path);
  char text[4];
  for (size_t i = 0; i < bytes.size(); i++) {
    snprintf(text, sizeof text, "%02x", static_cast<unsigned char>(bytes[i]));
    file << text << (i % 32 == 31 || i + 1 == bytes.size() ? '\n' : ' ');
  }
}

TEST(Golden, EveryMessageHasTheCommittedBytes) {
  for (const Message& sample : samples::all(samples::Counting())) {
    std::string name = samples::name_of(sample), latest;
    int edition = 1;
    for (; auto bytes = read_hex(golden_path(name, edition)); edition++) {
      latest = *bytes;
      auto decoded = decode(std::string_view(latest).substr(4));  // older editions too: no client is left behind
      ASSERT_TRUE(std::holds_alternative<Message>(decoded)) << name << ": " << failure(decoded).message;
      EXPECT_EQ(std::get<Message>(decoded).index(), sample.index()) << name;
    }
    // After a field was appended: ELLM_WRITE_GOLDEN=1 codec_test, and commit the new edition beside the old ones.
    if (getenv("ELLM_WRITE_GOLDEN") && latest != encode_frame(sample))
      write_hex(golden_path(name, edition), latest = encode_frame(sample));
    ASSERT_FALSE(latest.empty()) << golden_path(name, 1) << " is missing";
    ASSERT_EQ(encode_frame(sample), latest) << name;
    EXPECT_TRUE(same_message(decode(std::string_view(latest).substr(4)), sample)) << name;
  }
}

TEST(Golden, MsgpackReadsWhatWeWrite) {
  for (const Message& sample : samples::all(samples::Counting())) {
    std::string frame = encode_frame(sample);
    ASSERT_EQ(frame_length(reinterpret_cast<const unsigned char*>(frame.data())), frame.size() - 4);
    size_t used = 0;
    msgpack::object_handle handle = msgpack::unpack(frame.data() + 4, frame.size() - 4, used);
    ASSERT_EQ(used, frame.size() - 4);
    msgpack::object root = handle.get();
    ASSERT_EQ(root.type, msgpack::type::ARRAY);
    std::visit(
        [&](const auto& m) {
          EXPECT_EQ(root.via.array.ptr[0].as<uint32_t>(), m.kTag);
          EXPECT_EQ(root.via.array.size, 1 + std::tuple_size_v<decltype(m.fields())>);
          EXPECT_TRUE(root.via.array.ptr[1].as<uint32_t>() == std::get<0>(m.fields()));
        },
        sample);
  }
}

TEST(Codec, RandomRoundTrips) {
  for (uint64_t seed = 0; seed < 100; seed++)
    for (const Message& sample : samples::all(samples::Random(seed))) {
      std::string body = body_of(sample);
      auto decoded = decode(body);
      ASSERT_TRUE(std::holds_alternative<Message>(decoded))
          << samples::name_of(sample) << ": " << failure(decoded).message;
      ASSERT_TRUE(same_message(decoded, sample)) << samples::name_of(sample) << ", seed " << seed;
    }
}

TEST(Codec, EveryTruncationIsAnError) {
  for (const Message& sample : samples::all(samples::Counting())) {
    std::string body = body_of(sample);
    for (size_t length = 0; length < body.size(); length++) {
      auto decoded = decode(std::string_view(body).substr(0, length));
      ASSERT_TRUE(std::holds_alternative<DecodeFailure>(decoded))
          << samples::name_of(sample) << " of " << length << " bytes";
      EXPECT_EQ(failure(decoded).code, ErrorCode::bad_request);
    }
    EXPECT_NE(failure(decode(body + "x")).message.find("1 bytes too many"), std::string::npos);
  }
}

TEST(Codec, MutatedBodiesNeitherCrashNorAllocateMuch) {
  std::mt19937_64 random(7);
  auto messages = samples::all(samples::Counting());
  for (int round = 0; round < 60000; round++) {
    std::string body = body_of(messages[random() % messages.size()]);
    for (int edits = 1 + random() % 4; edits > 0; edits--) {
      size_t at = random() % body.size();
      switch (random() % 4) {
        case 0: body[at] = static_cast<char>(random()); break;
        case 1: body[at] = "\xdd\xdc\x9f\xdb\xc6\xc0\xcf\xff"[random() % 8]; break;
        case 2: body.erase(at, 1 + random() % 3); break;
        case 3: body.insert(at, 1, static_cast<char>(random())); break;
      }
      if (body.empty()) break;
    }
    size_t before = allocated_bytes();
    auto decoded = decode(body);
    ASSERT_LE(allocated_bytes() - before, (size_t{66} << 10) + 20 * body.size());
    if (auto* message = std::get_if<Message>(&decoded)) body_of(*message);  // whatever was accepted can be sent
  }
}

TEST(Codec, AClaimedLengthAllocatesNothing) {
  // [generate, 1, "", "", array of 2^32 - 1 …
  std::string huge = "\x96\x02\x01\xa0\xa0\xdd\xff\xff\xff\xff";
  size_t before = allocated_bytes();
  auto decoded = decode(huge);
  EXPECT_LE(allocated_bytes() - before, 4096u);
  EXPECT_EQ(failure(decoded).id, 1u);
  EXPECT_EQ(failure(decoded).message, "generate.tokens: an array of 4294967295 elements in 0 bytes");
  for (const char* start :
       {"\xdd\xff\xff\xff\xff", "\x92\x02\xdb\xff\xff\xff\xff", "\x92\xcd\x03\xe7\xdf\xff\xff\xff\xff"}) {
    before = allocated_bytes();
    EXPECT_TRUE(std::holds_alternative<DecodeFailure>(decode(start)));
    EXPECT_LE(allocated_bytes() - before, 4096u);
  }
}

TEST(Codec, AListOfEmptyRecordsIsBounded) {
  // A megabyte of empty arrays where ModelInfo records are expected: 1 byte each on the wire, over 200 in memory.
  msgpack::sbuffer buffer;
  msgpack::packer packer(buffer);
  packer.pack_array(3), packer.pack(ModelsReply::kTag), packer.pack(5u);
  packer.pack_array(1 << 20);
  for (int i = 0; i < 1 << 20; i++) packer.pack_array(0);
  size_t before = allocated_bytes();
  auto decoded = decode({buffer.data(), buffer.size()});
  EXPECT_LE(allocated_bytes() - before, 4096u);
  EXPECT_NE(failure(decoded).message.find("models_reply.models: a list of 1048576 is too long"), std::string::npos)
      << failure(decoded).message;
}

TEST(Codec, DeepNestingIsSkippedWithoutRecursion) {
  std::string body = "\x93\x08\x01\x02";  // cancel 1 2, and a field of the future:
  body[0] = '\x94';
  body += std::string(1 << 20, '\x91') + '\xc0';
  auto decoded = decode(body);
  ASSERT_TRUE(std::holds_alternative<Message>(decoded)) << failure(decoded).message;
  EXPECT_EQ(std::get<Cancel>(std::get<Message>(decoded)).target, 2u);
}

TEST(Codec, UnknownTrailingFieldsAreIgnoredAndMissingOnesKeepDefaults) {
  auto decoded = decode(pack(Cancel::kTag, 7u, 3u, std::string("later"), 2.5, std::map<std::string, int>{{"a", 1}}));
  ASSERT_TRUE(std::holds_alternative<Message>(decoded)) << failure(decoded).message;
  decoded = decode(pack(Tokenize::kTag, 7u));
  auto& tokenize = std::get<Tokenize>(std::get<Message>(decoded));
  EXPECT_EQ(tokenize.id, 7u);
  EXPECT_TRUE(tokenize.add_special && tokenize.parse_special);
  // A part with fewer fields, and nil for "as the default is".
  decoded = decode(
      pack(Generate::kTag, 9u, msgpack::type::nil_t(), "hi", std::vector<int>{}, false, std::vector<float>{0.5f}));
  ASSERT_TRUE(std::holds_alternative<Message>(decoded)) << failure(decoded).message;
  auto& generate = std::get<Generate>(std::get<Message>(decoded));
  EXPECT_EQ(generate.sampling.temperature, 0.5f);
  EXPECT_EQ(generate.sampling.top_p, 0.95f);
}

TEST(Codec, BothKindsOfStringsAreRead) {
  std::string bytes = "\xff\xfe";
  auto decoded = decode(pack(TextReply::kTag, 1u, msgpack::type::raw_ref(bytes.data(), 2)));
  EXPECT_EQ(std::get<TextReply>(std::get<Message>(decoded)).text, bytes);
  decoded = decode(pack(TextReply::kTag, 1u, bytes));
  EXPECT_EQ(std::get<TextReply>(std::get<Message>(decoded)).text, bytes);
  EXPECT_EQ(body_of(TextReply{1, bytes}), "\x93\x24\x01\xc4\x02\xff\xfe");
  EXPECT_EQ(body_of(TextReply{1, "ab"}),
            "\x93\x24\x01\xa2"
            "ab");
}

TEST(Codec, NumbersOfEveryWidthAreRead) {
  auto temperature = [](auto number) {
    auto decoded = decode(pack(Generate::kTag, 1u, "", "", std::vector<int>{}, false, std::vector{number}));
    return std::get<Generate>(std::get<Message>(decoded)).sampling.temperature;
  };
  EXPECT_EQ(temperature(1), 1.0f);
  EXPECT_EQ(temperature(-3), -3.0f);
  EXPECT_EQ(temperature(-300), -300.0f);
  EXPECT_EQ(temperature(-70000), -70000.0f);
  EXPECT_EQ(temperature(int64_t{-5000000000}), -5e9f);
  EXPECT_EQ(temperature(uint64_t{1} << 63), 9223372036854775808.0f);
  EXPECT_EQ(temperature(0.1), 0.1f);
  EXPECT_TRUE(std::isnan(temperature(std::nan(""))));
  EXPECT_EQ(temperature(-std::numeric_limits<double>::infinity()), -std::numeric_limits<float>::infinity());
  for (uint64_t seed : {uint64_t{0}, uint64_t{127}, uint64_t{128}, uint64_t{65536}, ~uint64_t{0}}) {
    auto decoded = decode(body_of(Done{1, FinishReason::stop, "", seed, {}, {}}));
    EXPECT_EQ(std::get<Done>(std::get<Message>(decoded)).seed, seed);
  }
  // Signed formats that hold a number that is not negative.
  EXPECT_TRUE(std::holds_alternative<Message>(decode(std::string_view("\x92\x09\xd1\x01\x00", 5))));
}

struct Bad {
  std::string body;
  ErrorCode code;
  uint32_t id;
  std::string message;
};

TEST(Codec, ErrorsNameTheFieldAndTheRequest) {
  using V = std::vector<uint32_t>;
  const Bad kBad[] = {
      {"", ErrorCode::bad_request, 0, "message: the message ends here, at byte 0"},
      {"\x07", ErrorCode::bad_request, 0, "message: expected an array, got an integer"},
      {"\x90", ErrorCode::bad_request, 0, "message: expected [tag, …], got an empty array"},
      {"\xc1", ErrorCode::bad_request, 0, "message: expected an array, got a byte that is not msgpack (0xc1)"},
      {pack("generate", 1u), ErrorCode::bad_request, 0, "message: tag: expected an unsigned integer, got a string"},
      {pack(999u, 12u, "x"), ErrorCode::unknown_message, 12, "unknown message tag 999"},
      {pack(999u, "x"), ErrorCode::unknown_message, 0, "unknown message tag 999"},
      {pack(Models::kTag, 4u, 9u), ErrorCode::bad_request, 4, "models.action: unknown value 9, known are 1 to 4"},
      {pack(Models::kTag, 4u, 0u), ErrorCode::bad_request, 4, "models.action: unknown value 0, known are 1 to 4"},
      {pack(Cancel::kTag, -1), ErrorCode::bad_request, 0,
       "cancel.id: expected an unsigned integer, got a negative one"},
      {pack(Cancel::kTag, 1u << 31, uint64_t{1} << 32), ErrorCode::bad_request, 1u << 31,
       "cancel.target: 4294967296 is above 4294967295"},
      {pack(Tokenize::kTag, 3u, "m", 5), ErrorCode::bad_request, 3, "tokenize.text: expected a string, got an integer"},
      {pack(Tokenize::kTag, 3u, "m", "t", 1), ErrorCode::bad_request, 3,
       "tokenize.add_special: expected a boolean, got an integer"},
      {pack(Detokenize::kTag, 3u, "m", std::vector<int>{1, -2}), ErrorCode::bad_request, 3,
       "detokenize.tokens[1]: expected an unsigned integer, got a negative one"},
      {pack(Chat::kTag, 8u, "m",
            std::vector<std::tuple<std::string, std::string, V>>{{"user", "x", V{}}, {"user", "y", V{1, 2}}}, 7),
       ErrorCode::bad_request, 8, "chat.tools: expected a string, got an integer"},
      {pack(Chat::kTag, 8u, "m", std::vector<std::vector<std::string>>{{"user", "x"}, {"user", "y", "z"}}),
       ErrorCode::bad_request, 8, "chat.messages[1].token_ids: expected an array, got a string"},
      {pack(Generate::kTag, 2u, "", "", V{}, false, std::vector<std::string>{"hot"}), ErrorCode::bad_request, 2,
       "generate.sampling.temperature: expected a number, got a string"},
      {pack(Generate::kTag, 2u, "", "", V{}, false, std::vector<double>{1e300}), ErrorCode::bad_request, 2,
       "generate.sampling.temperature: the number is too large"},
      {pack(Generate::kTag, 2u, "", "", V{}, false, pack(1)), ErrorCode::bad_request, 2,
       "generate.sampling: expected an array, got a string"},
      {pack(Token::kTag, 2u, "", V{}, std::vector<std::tuple<int, float, std::vector<V>>>{{1, 0.5f, {V{1}}}}),
       ErrorCode::bad_request, 2, "token.logprobs[0].top[0]: expected a pair, got 1 elements"},
  };
  for (const Bad& bad : kBad) {
    auto decoded = decode(bad.body);
    ASSERT_TRUE(std::holds_alternative<DecodeFailure>(decoded)) << bad.message;
    EXPECT_EQ(failure(decoded).code, bad.code) << bad.message;
    EXPECT_EQ(failure(decoded).id, bad.id) << bad.message;
    EXPECT_EQ(failure(decoded).message, bad.message);
  }
}

TEST(Codec, AMessageLargerThanAFrameIsNotBuilt) {
  TextReply reply{1, std::string(kMaxFrameBytes - 8, 'x')};
  EXPECT_EQ(encode_frame(reply).size(), kMaxFrameBytes + 4);
  reply.text += 'x';
  EXPECT_THROW(encode_frame(reply), std::length_error);
}

}  // namespace
}  // namespace ellm::client
