// Package gen is the module of the code generated from proto/ by `make generate`.
// Nothing in it is written by hand but this file.
package gen
