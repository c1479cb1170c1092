// A function without a body, whose code is linked from elsewhere, needs an assembly file.
