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
    "java": """\
import java.util.Scanner;
public class Sum {
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
    "bash": 'read -r _\nread -r -a all\nsum=0\nfor x in "${all[@]}"; do sum=$((sum + x)); done\necho "$sum"\n',
}
CASES = (
    {"stdin": "3\n1 2 3\n", "stdout": "6\n"},
    {"stdin": "4\n1000000000 1000000000 1000000000 -7\n", "stdout": "2999999993\n"},
)
"""Cases that every sample passes."""
