// Included in front of every C++ source of the engine.
//
// GCC before 13.2.1 tells its optimizer that `ldtilecfg` reads 8 bytes of the 64 of a tile configuration, and so drops
// the code that writes the others (GCC bug 114098). The instruction then faults in llama.cpp's kernels for AMX. This overload is a
// better match for a pointer to a configuration than the compiler's own function, and reads all of it.
#if defined(__cplusplus) && defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
template <class Config> inline void _tile_loadconfig(const Config *config) {
    static_assert(sizeof(Config) == 64, "a tile configuration has 64 bytes");
    __asm__ volatile("ldtilecfg %0" : : "m"(*config));
}
#endif
