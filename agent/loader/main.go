// The loader: the first process of a sandbox whose agent is too large for one file. It joins the
// parts /.sandboxkit/p0, p1 and so on in memory and becomes the program that they are, with its own
// arguments and environment. It ends with status 71 where it gets no memory, 72 where a part cannot
// be read, and 73 where what they are cannot be run.
//
// build.py keeps nothing of the program but the function start, which is in start_*.s.
package main

func main() {}
