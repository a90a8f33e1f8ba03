// Runs what record.py wrote with a native library and compares: ./replay LIBRARY FILE [bits]
// Tells whether this processor can run a library: ./replay LIBRARY
//
// A file is a magic and records, each a number and its fields, little-endian. Blobs are numbered from 0 within a case;
// they are memory that structs point into.
//   1 CASE      u32 length, name                      forget all blobs
//   2 BLOB      u64 size, bytes
//   3 FILL      u64 size, byte                         a blob of one byte's value
//   4 POINT     u32 blob, u64 at, u32 target, u64 offset    store target's address + offset in blob
//   5 PACK      u32 source, u32 format, u64 rows, u64 cols  a blob: source, packed by this library
//   6 RUN       u32 program, u32 step
//   7 FLOATS    u32 blob, u64 count, f64 allowed, values    must differ by no more; what is not finite must be the
//                                                       same. With "bits" they must be equal, but for which NaN it is
//   8 INTEGERS  u32 blob, u64 count, values                 must be equal
// Exit status: 0 all equal, or it can; 1 some case differs, or it cannot; 2 it cannot be done.
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "octavo/abi.h"

namespace {

[[noreturn]] void stop(const std::string& why) {
  fprintf(stderr, "replay: %s\n", why.c_str());
  exit(2);
}

struct Blob {
  uint8_t* data = nullptr;
  uint64_t size = 0;

  explicit Blob(uint64_t bytes) : size(bytes) {
    data = static_cast<uint8_t*>(aligned_alloc(64, (bytes + 127) / 64 * 64));
    if (data == nullptr) stop("out of memory");
  }
};

class Reader {
public:
  explicit Reader(const char* path) : file_(fopen(path, "rb")) {
    if (file_ == nullptr) stop(std::string("cannot open ") + path);
  }
  template <class T> T take() {
    T value;
    bytes(&value, sizeof value);
    return value;
  }
  void bytes(void* into, uint64_t count) {
    if (fread(into, 1, count, file_) != count) stop("the file ends in the middle");
  }
  bool done() {
    const int next = fgetc(file_);
    if (next != EOF) ungetc(next, file_);
    return next == EOF;
  }

private:
  FILE* file_;
};

// The functions that are needed.
struct Library {
  decltype(&octavo_isa) isa;
  decltype(&octavo_isa_supported) isa_supported;
  decltype(&octavo_team_create) team_create;
  decltype(&octavo_packed_bytes) packed_bytes;
  decltype(&octavo_pack) pack;
  decltype(&octavo_run) run;
  void* team;

  explicit Library(const char* path) {
    void* handle = dlopen(path, RTLD_NOW);
    if (handle == nullptr) stop(dlerror());
    find(handle, "octavo_isa", isa);
    find(handle, "octavo_isa_supported", isa_supported);
    find(handle, "octavo_team_create", team_create);
    find(handle, "octavo_packed_bytes", packed_bytes);
    find(handle, "octavo_pack", pack);
    find(handle, "octavo_run", run);
    team = team_create(2, nullptr);
    if (team == nullptr) stop("no threads");
  }
  template <class F> void find(void* handle, const char* name, F& function) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    if (function == nullptr) stop(std::string("the library has no ") + name);
  }
};

class Replay {
public:
  Replay(const Library& library, Reader& reader, bool bits) : library_(library), reader_(reader), bits_(bits) {}

  int run() {
    while (!reader_.done()) {
      switch (reader_.take<uint32_t>()) {
      case 1: begin(); break;
      case 2: blob(); break;
      case 3: fill(); break;
      case 4: point(); break;
      case 5: pack(); break;
      case 6: call(); break;
      case 7: floats(); break;
      case 8: integers(); break;
      default: stop("an unknown record");
      }
    }
    end();
    printf("%s: %d cases, %d programs, %d with other bits, %d differ\n", library_.isa(), cases_, programs_, other_bits_,
           failed_);
    return failed_ == 0 && programs_ > 0 ? 0 : 1;
  }

private:
  void begin() {
    end();
    name_.resize(reader_.take<uint32_t>());
    reader_.bytes(&name_[0], name_.size());
    ++cases_;
  }
  void end() {
    for (Blob& each : blobs_) free(each.data);
    blobs_.clear();
    if (differs_) ++failed_;
    if (has_other_bits_) ++other_bits_;
    differs_ = has_other_bits_ = false;
  }
  void blob() {
    blobs_.emplace_back(reader_.take<uint64_t>());
    reader_.bytes(blobs_.back().data, blobs_.back().size);
  }
  void fill() {
    blobs_.emplace_back(reader_.take<uint64_t>());
    memset(blobs_.back().data, reader_.take<uint8_t>(), blobs_.back().size);
  }
  void point() {
    Blob& blob = at(reader_.take<uint32_t>());
    const uint64_t place = reader_.take<uint64_t>();
    const uint8_t* target = at(reader_.take<uint32_t>()).data;
    target += reader_.take<uint64_t>();
    if (place + sizeof target > blob.size) stop("a pointer outside its blob");
    memcpy(blob.data + place, &target, sizeof target);
  }
  void pack() {
    const Blob source = at(reader_.take<uint32_t>());
    const int32_t format = static_cast<int32_t>(reader_.take<uint32_t>());
    const int64_t rows = reader_.take<int64_t>(), cols = reader_.take<int64_t>();
    const int64_t size = library_.packed_bytes(format, rows, cols);
    if (size < 0) stop(name_ + ": a format that this library does not pack");
    blobs_.emplace_back(static_cast<uint64_t>(size));
    if (library_.pack(library_.team, format, source.data, rows, cols, blobs_.back().data) != 0) stop("packing failed");
  }
  void call() {
    const void* program = at(reader_.take<uint32_t>()).data;
    const void* step = at(reader_.take<uint32_t>()).data;
    library_.run(library_.team, static_cast<const OctavoProgram*>(program), static_cast<const OctavoStep*>(step));
    ++programs_;
  }
  void floats() {
    const Blob& blob = at(reader_.take<uint32_t>());
    std::vector<float> wanted(reader_.take<uint64_t>());
    const double allowed = reader_.take<double>();
    reader_.bytes(wanted.data(), wanted.size() * sizeof(float));
    const float* found = reinterpret_cast<const float*>(blob.data);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const double left = static_cast<double>(found[i]), right = static_cast<double>(wanted[i]);
      const bool near = isfinite(right) ? fabs(left - right) <= allowed : isnan(right) ? isnan(left) : left == right;
      const bool equal = memcmp(&found[i], &wanted[i], sizeof(float)) == 0 || (isnan(left) && isnan(right));
      has_other_bits_ |= !equal;
      if (bits_ ? !equal : !near) return complain(i, left, right);
    }
  }
  void integers() {
    const Blob& blob = at(reader_.take<uint32_t>());
    std::vector<int32_t> wanted(reader_.take<uint64_t>());
    reader_.bytes(wanted.data(), wanted.size() * sizeof(int32_t));
    const int32_t* found = reinterpret_cast<const int32_t*>(blob.data);
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (found[i] != wanted[i]) return complain(i, found[i], wanted[i]);
    }
  }
  void complain(size_t index, double found, double wanted) {
    if (!differs_) printf("%s: element %zu is %.9g, not %.9g\n", name_.c_str(), index, found, wanted);
    differs_ = true;
  }
  Blob& at(uint32_t number) {
    if (number >= blobs_.size()) stop("a blob that is not there");
    return blobs_[number];
  }

  const Library& library_;
  Reader& reader_;
  const bool bits_; // floats must be equal, not just near
  std::vector<Blob> blobs_;
  std::string name_;
  bool differs_ = false, has_other_bits_ = false;
  int cases_ = 0, programs_ = 0, failed_ = 0, other_bits_ = 0;
};

} // namespace

int main(int count, char** arguments) {
  const bool bits = count == 4 && strcmp(arguments[3], "bits") == 0;
  if (count != 2 && count != 3 && !bits) stop("usage: replay LIBRARY [FILE [bits]]");
  const Library library(arguments[1]);
  if (count == 2) {
    const bool can = library.isa_supported() != 0;
    printf("%s: %s\n", library.isa(), can ? "this processor can run it" : "this processor cannot run it");
    return can ? 0 : 1;
  }
  Reader reader(arguments[2]);
  char magic[8];
  reader.bytes(magic, sizeof magic);
  if (memcmp(magic, "OCTAVO1", 8) != 0) stop("the file is none of record.py's");
  return Replay(library, reader, bits).run();
}
