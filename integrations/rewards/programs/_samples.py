"""One small program in each built-in language: it reads n and n numbers, and prints the sum."""

SAMPLES: dict[str, str] = {
    "python": "input()\nprint(sum(map(int, input().split())))\n",
    "pypy": "input()\nprint(sum(map(int, input().split())))\n",
    "c": """\
#include <stdio.h>
int main(void) {
    int n; long long sum = 0, x;
    if (scanf("%d", &n) != 1) return 1;
    while (n-- > 0 && scanf("%lld", &x) == 1) sum += x;
    printf("%lld\\n", sum);
}
""",
    "cpp17": """\
#include <iostream>
int main() {
    int n; long long sum = 0, x;
    std::cin >> n;
    while (n-- && std::cin >> x) sum += x;
    std::cout << sum << "\\n";
}
""",
    "cpp20": """\
#include <iostream>
#include <numeric>
#include <vector>
#include <span>
int main() {
    int n; std::cin >> n;
    std::vector<long long> xs(n);
    for (auto& x : xs) std::cin >> x;
    std::span all(xs);
    std::cout << std::accumulate(all.begin(), all.end(), 0LL) << std::endl;
}
""",
    "cpp23": """\
#include <expected>
#include <iostream>
std::expected<long long, int> read() {
    long long x;
    if (std::cin >> x) return x;
    return std::unexpected(1);
}
int main() {
    auto n = read().value_or(0); auto sum = 0ll;
    while (n-- > 0) sum += *read();
    std::cout << sum << std::endl;
}
""",
    "java": """\
import java.util.Scanner;
// Not the public class below, but this one: class Other
class Sum {
    public static void main(String[] args) {
        Scanner in = new Scanner(System.in);
        long sum = 0;
        for (int n = in.nextInt(); n > 0; n--) sum += in.nextLong();
        System.out.println(sum);
    }
}
""",
    "kotlin": """\
fun main() {
    readLine()
    println(readLine()!!.trim().split(" ").map { it.toLong() }.sum())
}
""",
    "csharp": """\
using System;
using System.Linq;
class Program {
    static void Main() {
        Console.ReadLine();
        Console.WriteLine(Console.ReadLine().Split().Select(long.Parse).Sum());
    }
}
""",
    "go": """\
package main
import "fmt"
func main() {
    var n, x, sum int64
    fmt.Scan(&n)
    for ; n > 0; n-- { fmt.Scan(&x); sum += x }
    fmt.Println(sum)
}
""",
    "rust": """\
use std::io::{self, Read};
fn main() {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).unwrap();
    let sum: i64 = text.split_whitespace().skip(1).map(|x| x.parse::<i64>().unwrap()).sum();
    println!("{}", sum);
}
""",
    "javascript": """\
const words = require("fs").readFileSync(0, "utf8").trim().split(/\\s+/).map(Number);
console.log(words.slice(1).reduce((a, b) => a + b, 0));
""",
    "typescript": """\
declare function require(name: string): any;
const words: number[] = require("fs").readFileSync(0, "utf8").trim().split(/\\s+/).map(Number);
console.log(words.slice(1).reduce((a: number, b: number) => a + b, 0));
""",
    "ruby": "gets\nputs gets.split.map(&:to_i).sum\n",
    "haskell": 'main = interact $ \\text -> show (sum (tail (map read (words text)))) ++ "\\n"\n',
    "ocaml": """\
let () =
  let n = Scanf.scanf " %d" (fun x -> x) in
  let sum = ref 0 in
  for _ = 1 to n do sum := !sum + Scanf.scanf " %d" (fun x -> x) done;
  Printf.printf "%d\\n" !sum
""",
    "perl": "<STDIN>;\nmy $sum = 0;\n$sum += $_ for split ' ', <STDIN>;\nprint \"$sum\\n\";\n",
    "php": "<?php\nfgets(STDIN);\necho array_sum(explode(' ', trim(fgets(STDIN)))), \"\\n\";\n",
    "lua": """\
local sum = 0
for _ = 1, io.read("n") do sum = sum + io.read("n") end
print(sum)
""",
    "pascal": """\
var n, i: longint; x, sum: int64;
begin
  read(n); sum := 0;
  for i := 1 to n do begin read(x); sum := sum + x end;
  writeln(sum)
end.
""",
    "r": 'x <- scan("stdin", quiet = TRUE)\ncat(format(sum(x[-1]), scientific = FALSE), "\\n")\n',
    "scala": """\
object Sum extends App {
  scala.io.StdIn.readLine()
  println(scala.io.StdIn.readLine().split(" ").map(_.toLong).sum)
}
""",
    "bash": 'read -r _\nread -r -a all\nsum=0\nfor x in "${all[@]}"; do sum=$((sum + x)); done\necho "$sum"\n',
}
CASES = (
    {"stdin": "3\n1 2 3\n", "stdout": "6\n"},
    {"stdin": "4\n1000000000 1000000000 1000000000 -7\n", "stdout": "2999999993\n"},
)
"""Cases that every sample passes."""
