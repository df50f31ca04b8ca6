import { expect, test } from "vitest";
import { ago, bytes, duration, energy, mass, number, partOf, plain, quantity, rate, sentence, share } from "./format";

test("numbers are short, and non-numbers are marked", () => {
  expect(number(null)).toBe("–");
  expect(number("NaN")).toBe("NaN");
  expect(number("-Infinity")).toBe("−∞");
  expect(number(0)).toBe("0");
  expect(number(1_234_567)).toBe("1\u202f234\u202f567");
  expect(number(1234)).toBe("1234");
  expect(number(123_456.7)).toBe("123\u202f500");
  expect(number(0.123456)).toBe("0.1235");
  expect(number(3e-7)).toBe("3.00e-7");
  expect(number(1.5e9 + 0.5)).toBe("1.50e9");
});

test("a noun agrees with its count", () => {
  expect([0, 1, 2, 12_345].map((count) => quantity(count, "more step"))).toEqual([
    "0 more steps",
    "1 more step",
    "2 more steps",
    "12\u202f345 more steps",
  ]);
});

test("a part is counted beside the whole", () => {
  expect(partOf(3, 12, "run")).toBe("3 of 12 runs");
  expect(partOf(0, 1, "run")).toBe("0 of 1 run");
  expect(partOf(12, 12, "run")).toBe("12 runs");
});

test("durations and ages use natural units", () => {
  expect(duration(0.00005)).toBe("50 µs");
  expect(duration(0.25)).toBe("250 ms");
  expect(duration(9.94)).toBe("9.9 s");
  expect(duration(0.9996)).toBe("1.0 s");
  expect(duration(59.7)).toBe("1 min 00 s");
  expect(duration(61)).toBe("1 min 01 s");
  expect(duration(3725)).toBe("1 h 02 min");
  expect(duration(200_000)).toBe("2 d 7 h");
  expect(duration(-1)).toBe("–");
  expect(duration(Number.NaN)).toBe("–");
  expect(ago(100, 103)).toBe("now");
  expect(ago(100, 190)).toBe("1 min ago");
  expect(ago(null, 1)).toBe("–");
});

test("rates, shares, sizes and config values", () => {
  expect(rate(12.345)).toBe("12.3 /s");
  expect(rate(0.25)).toBe("4.0 s each");
  expect(rate(null)).toBe("–");
  expect(share(0.5)).toBe("50 %");
  expect(share(0.998)).toBe("99.8 %");
  expect(share(0.9999)).toBe("99.9 %");
  expect(bytes(1_500_000)).toBe("1.5 MB");
  expect([energy(null), energy(0.0123), energy(12.345)]).toEqual(["–", "12.3 Wh", "12.3 kWh"]);
  expect([mass(471), mass(2500)]).toEqual(["471 g", "2.5 kg"]);
  expect(plain([1, "a"])).toBe('[1,"a"]');
  expect(plain(null)).toBe("–");
});

test("a message of the API becomes a sentence", () => {
  expect(sentence("wrong key")).toBe("Wrong key.");
  expect(sentence("Is it running?")).toBe("Is it running?");
  expect(sentence("")).toBe("");
});
