// The loader: the first process of a sandbox whose agent is too large for one file. It joins the
// parts /.sandboxkit/p0, p1 and so on in memory and executes the result, with its own arguments and
// environment. It exits with status 71 if it gets no memory, 72 if a part cannot be read, and 73 if the
// result cannot be executed.
//
// build.py keeps only the function start of this program, which is in start_*.s.
package main

func main() {}
