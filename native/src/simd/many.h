// Several Vec16 that take the same steps: what waits for one step of a long chain then works on the others.
#pragma once
#include <type_traits>

#include "simd/vec.h"

namespace octavo {

template <int N> struct Many { Vec16 v[N]; };

// Vectors of an operand: 0 of a Vec16, which meets each of the others.
template <class T> constexpr int kVectorsOf = 0;
template <int N> constexpr int kVectorsOf<Many<N>> = N;
template <class... T> constexpr int most_vectors() {
  int most = 0;
  ((most = kVectorsOf<T> > most ? kVectorsOf<T> : most), ...);
  return most;
}

inline Vec16 part_of(Vec16 x, int) { return x; }
template <int N> inline Vec16 part_of(const Many<N>& x, int i) { return x.v[i]; }

template <class F, class... T> inline auto step_of_each(F&& f, const T&... x) {
  constexpr int kCount = most_vectors<T...>();
  Many<kCount> out;
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) out.v[i] = f(part_of(x, i)...);
  return out;
}

template <class... T> using IfMany = std::enable_if_t<(most_vectors<T...>() > 0)>;

template <class A, class B, class = IfMany<A, B>> inline auto operator+(const A& a, const B& b) {
  return step_of_each([](Vec16 x, Vec16 y) { return x + y; }, a, b);
}
template <class A, class B, class = IfMany<A, B>> inline auto operator-(const A& a, const B& b) {
  return step_of_each([](Vec16 x, Vec16 y) { return x - y; }, a, b);
}
template <class A, class B, class = IfMany<A, B>> inline auto operator*(const A& a, const B& b) {
  return step_of_each([](Vec16 x, Vec16 y) { return x * y; }, a, b);
}
template <class A, class B, class = IfMany<A, B>> inline auto operator/(const A& a, const B& b) {
  return step_of_each([](Vec16 x, Vec16 y) { return x / y; }, a, b);
}
template <class A, class B, class = IfMany<A, B>> inline auto min(const A& a, const B& b) {
  return step_of_each([](Vec16 x, Vec16 y) { return min(x, y); }, a, b);
}
template <class A, class B, class = IfMany<A, B>> inline auto max(const A& a, const B& b) {
  return step_of_each([](Vec16 x, Vec16 y) { return max(x, y); }, a, b);
}
template <class A, class B, class = IfMany<A, B>> inline auto scale2(const A& a, const B& b) {
  return step_of_each([](Vec16 x, Vec16 y) { return scale2(x, y); }, a, b);
}
template <class A, class B, class C, class = IfMany<A, B, C>> inline auto fma(const A& a, const B& b, const C& c) {
  return step_of_each([](Vec16 x, Vec16 y, Vec16 z) { return fma(x, y, z); }, a, b, c);
}
template <class A, class B, class C, class D, class = IfMany<A, B, C, D>>
inline auto select_less(const A& a, const B& b, const C& c, const D& d) {
  return step_of_each([](Vec16 x, Vec16 y, Vec16 z, Vec16 w) { return select_less(x, y, z, w); }, a, b, c, d);
}
template <int N> inline Many<N> round_int(const Many<N>& a) {
  return step_of_each([](Vec16 x) { return round_int(x); }, a);
}

} // namespace octavo
