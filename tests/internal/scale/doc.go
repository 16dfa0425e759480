// Package scale is what the packages of tests that run at two lengths share: the flags
// -full and -seed, how often and how long that is, and the choices that a seed makes.
//
// Callers register the flags in a package-level variable, and end TestMain with Main.
package scale
